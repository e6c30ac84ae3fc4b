"""Messages of a client that is not ours, and what readers that are not ours must find in the tables.

    messages.py send ADDRESS FROM TO RATE
        sends the messages FROM..TO of the queue at this address, RATE a second until its input ends, then the rest at once
    messages.py check delta|parquet FOLDER QUEUE COUNT BROKER
        the table has the first COUNT messages of the queue, each once, as they were sent
    messages.py first ADDRESS N
        message N is the first in this queue; takes it away
    messages.py empty ADDRESS...
        nothing is in these queues

The broker's url, with user and password, is in BROKER_URL. What message n of a queue is follows from n alone.
"""

import datetime
import os
import select
import sys
import time
import uuid

URL = os.environ.get("BROKER_URL")
# The first creation-time; that of message n is n quarters of a second later.
FIRST = 1_717_200_000


def identifier(queue, n):
    """Message id n as proton takes it, and as text: one of each type that AMQP has."""
    from proton import ulong

    match n % 4:
        case 0:
            return f"{queue}/{n}", f"{queue}/{n}"
        case 1:
            return ulong(n << 40), str(n << 40)
        case 2:
            name = uuid.uuid5(uuid.NAMESPACE_URL, f"{queue}/{n}")
            return name, str(name)
        case _:
            name = f"{queue}/{n}".encode()
            return name, name.hex()


def body(queue, n):
    """The body as proton takes it, and further data sections."""
    if queue == "texts":
        text = [f"row {n}", f"Grüße, 水 and 🐟 {n}", f'"quoted",\n{n}\\', "", f"{n} " * 400, f"data ü {n}"][n % 6]
        # Proton sends bytes as a data section when told to infer, str as an amqp-value.
        return (text.encode() if n % 6 == 5 else text), []
    whole = bytes((n + i) % 256 for i in range(n % 300))
    return [(whole, []), (whole[:10], [whole[10:11], whole[11:]]), (f"ü {n}", []), (None, [])][n % 4]


def value(queue, n, broker):
    """What of the body must be in the table."""
    first, more = body(queue, n)
    sections = [part.encode() if isinstance(part, str) else part for part in [first, *more] if part is not None]
    if broker == "rabbitmq":
        # RabbitMQ 3.10 hands data sections on in reverse order, and a message without a body with an empty one.
        sections = sections[::-1] or [b""]
    if not sections:
        return None
    return b"".join(sections).decode() if queue == "texts" else b"".join(sections)


def properties(n):
    """Application properties as proton takes them, and as text."""
    from proton import int32, symbol, timestamp, ubyte

    moment = (FIRST + n) * 1000 + n % 1000
    name = uuid.uuid5(uuid.NAMESPACE_URL, str(n))
    some = {
        "origin": ("sensor ü", "sensor ü"),
        "number": (int32(-n), str(-n)),
        "long": (n << 33, str(n << 33)),
        "small": (ubyte(n % 256), str(n % 256)),
        "ratio": (n + 0.5, f"{n}.5"),
        "flag": (n % 2 == 0, "true" if n % 2 == 0 else "false"),
        "moment": (timestamp(moment), text_of(moment)),
        "name": (name, str(name)),
        "raw": (n.to_bytes(4, "big"), n.to_bytes(4, "big").hex()),
        "mark": (symbol("blue"), "blue"),
        "nothing": (None, None),
    }
    # Every seventh has none at all.
    some = {} if n % 7 == 6 else some
    return {key: sent for key, (sent, _) in some.items()}, {key: text for key, (_, text) in some.items()}


def text_of(millis):
    moment = datetime.datetime.fromtimestamp(millis // 1000, datetime.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{millis % 1000:03}Z"


def message(queue, n):
    from proton import Message

    sent, sections = body(queue, n)

    class Sections(Message):
        def encode(self):
            more = (b"\x00\x53\x75\xb0" + len(section).to_bytes(4, "big") + section for section in sections)
            return super().encode() + b"".join(more)

    return Sections(
        id=identifier(queue, n)[0],
        body=sent,
        inferred=isinstance(sent, bytes),
        durable=True,
        creation_time=FIRST + n / 4,
        properties=properties(n)[0] or None,
    )


def send(address, first, end, rate):
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    queue = address.rsplit("/", 1)[-1]

    class Sender(MessagingHandler):
        def __init__(self):
            super().__init__()
            self.next, self.accepted = first, 0

        def on_start(self, event):
            self.started, self.hurry = time.monotonic(), False
            connection = event.container.connect(URL, reconnect=False, allowed_mechs="PLAIN")
            self.sender = event.container.create_sender(connection, address)
            event.container.schedule(0.01, self)

        def on_timer_task(self, event):
            # Nobody writes there: what can be read is the end.
            self.hurry = self.hurry or bool(select.select([sys.stdin], [], [], 0)[0])
            self.on_sendable(event)
            if self.next < end:
                event.container.schedule(0.01, self)

        def on_sendable(self, _):
            due = end if self.hurry else first + int((time.monotonic() - self.started) * rate)
            while self.sender.credit and self.next < min(due, end):
                self.sender.send(message(queue, self.next))
                self.next += 1

        def on_accepted(self, event):
            self.accepted += 1
            if self.accepted == end - first:
                event.connection.close()

        def failed(self, event):
            sys.exit(f"sending to {address} failed: {event.type} {event.delivery and event.delivery.remote_state}")

        on_rejected = on_released = on_link_error = on_session_error = on_connection_error = failed
        on_transport_error = failed

    Container(Sender()).run()


def check(kind, folder, queue, count, broker):
    if kind == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(folder).to_pyarrow_table()
    else:
        from pyarrow import dataset

        rows = dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    found = {}
    for row in rows.select(["id", "sent", "value", "properties"]).to_pylist():
        found.setdefault(row["id"], []).append(row)
    doubled = [name for name, same in found.items() if len(same) > 1]
    names = {identifier(queue, n)[1]: n for n in range(count)}
    problems = [f"{name} is there {len(found[name])} times" for name in doubled]
    problems += [f"message {n}, {name}, is lost" for name, n in names.items() if name not in found]
    problems += [f"{name} was never sent" for name in found if name not in names]
    for name, n in names.items():
        for row in found.get(name, []):
            sent = datetime.datetime.fromtimestamp(FIRST + n / 4, datetime.timezone.utc)
            expected = {"sent": sent, "value": value(queue, n, broker), "properties": properties(n)[1]}
            got = {"sent": row["sent"], "value": row["value"], "properties": dict(row["properties"] or {})}
            problems += [
                f"{name}: {column} is {got[column]!r}, not {wanted!r}"
                for column, wanted in expected.items()
                if got[column] != wanted
            ]
    if problems:
        sys.exit("\n".join([f"{kind} {folder}: {len(problems)} problems", *problems[:10]]))


def take(connection, address, name):
    """Takes the first message, which must have this id."""
    receiver = connection.create_receiver(address, credit=1)
    first = receiver.receive(timeout=30)
    if first.id != name:
        sys.exit(f"{name} is not the first in {address}, but {first}")
    receiver.accept()
    # The link is not closed alone: RabbitMQ 3.10 never says that it did.


def first(address, n):
    from proton.utils import BlockingConnection

    connection = BlockingConnection(URL, timeout=30, allowed_mechs="PLAIN")
    take(connection, address, identifier(address.rsplit("/", 1)[-1], n)[0])
    connection.close()


def empty(addresses):
    """Queues are first in, first out: what comes first must be what was put there last."""
    from proton import Message
    from proton.utils import BlockingConnection

    connection = BlockingConnection(URL, timeout=30, allowed_mechs="PLAIN")
    for address in addresses:
        connection.create_sender(address).send(Message(id="last", body="last", durable=True))
        take(connection, address, "last")
    connection.close()


match sys.argv[1:]:
    case ["send", address, first, end, rate]:
        send(address, int(first), int(end), int(rate))
    case ["check", kind, folder, queue, count, broker]:
        check(kind, folder, queue, int(count), broker)
    case ["first", address, n]:
        first(address, int(n))
    case ["empty", *addresses]:
        empty(addresses)
    case _:
        sys.exit(__doc__)
