//! The binary: hands the standard registry to the command line.

use std::process::ExitCode;

use distributary::{cli, embed};

fn main() -> ExitCode {
    #[cfg(target_env = "gnu")]
    give_large_buffers_back();
    cli::main(&embed::standard())
}

/// Columns and pages are a few hundred KiB each and live for about one epoch. By itself glibc soon takes them from its
/// arenas, between small objects that outlive them, and keeps the holes: half as much memory again. Mapped one by one they
/// go back when they are freed.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn give_large_buffers_back() {
    const LARGE: libc::c_int = 128 << 10;
    // SAFETY: mallopt sets a parameter of the allocator; no other thread runs yet. If it refuses nothing has changed.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
}
