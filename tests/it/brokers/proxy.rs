//! A proxy between the runtime and a broker, for cutting connections as cables and firewalls do.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

/// Passes everything on until told otherwise.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    target: AtomicU16,
    /// Whether connections are taken.
    open: AtomicBool,
    done: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Passes connections on to `target`, a port of this machine.
    pub fn start(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared {
            target: target.into(),
            open: true.into(),
            done: false.into(),
            sockets: Mutex::default(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if accepting.done.load(Ordering::SeqCst) {
                    return;
                }
                // Whoever cannot be served is hung up on.
                let _ = accepting.pair(near);
            }
        });
        Self { port, shared }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on connections go there.
    pub fn turn_to(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Cuts every connection and takes no new one.
    pub fn close(&self) {
        self.shared.open.store(false, Ordering::SeqCst);
        self.cut();
    }

    /// Takes connections again.
    pub fn open(&self) {
        self.shared.open.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn pair(&self, near: TcpStream) -> io::Result<()> {
        let far = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target.load(Ordering::SeqCst)))?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let mut sockets = self.sockets.lock().expect("not poisoned");
        if !self.open.load(Ordering::SeqCst) {
            return Ok(());
        }
        sockets.extend([near.try_clone()?, far.try_clone()?]);
        pump(near.try_clone()?, far.try_clone()?);
        pump(far, near);
        Ok(())
    }

    fn cut(&self) {
        for socket in self.sockets.lock().expect("not poisoned").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Carries bytes one way until either end closes; then both are closed.
fn pump(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}
