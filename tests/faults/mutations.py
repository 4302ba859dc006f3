"""Files that are not what was written: mutated bytes, mutated values, and things that are not files
with content."""

import copy
import json
import os
import struct

TOKENS = [
    b"\0",
    b'"',
    b"[" * 2000,
    b'{"a":' * 2000,
    b"]",
    b"NaN",
    b"1e999",
    b"-0",
    b"9" * 5000,
    b"\xff\xfe",
    b"\\ud800",
    b"\n",
    b"\r",
    b"a." * 3000,
    b"'''",
    b"=",
    b"true",
]
VALUES = [
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    0.5,
    1e308,
    "",
    "x" * 5000,
    "../../etc/passwd",
    "\0",
    "\ud800",
    [],
    {},
    [[]],
    [None, {"a": 1}],
    {"": {}},
    {"seeds": [1]},
]


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def mutate_bytes(chance, raw):
    """Return bytes with one to three random changes."""
    raw = bytearray(raw)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(raw) + 1)
        end = min(len(raw), start + chance.choice([1, 1, 4, 50, 2000]))
        kind = chance.randrange(7)
        if kind == 0 and start < len(raw):
            raw[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            raw[start:start] = chance.choice(TOKENS)
        elif kind == 2:
            del raw[start:end]
        elif kind == 3:
            raw[start:start] = raw[start:end]
        elif kind == 4:
            del raw[start:]
        elif kind == 5:
            raw[start:end] = chance.randbytes(end - start)
        else:
            raw[start:end] = chance.choice(TOKENS)
    return bytes(raw)


def places(value, path=()):
    """Yield the path of every value within a value."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in items:
        yield from places(child, (*path, key))


def mutate_value(chance, value):
    """Return a value of JSON or TOML in which one value is another, or gone, or has another
    name."""
    path = chance.choice(list(places(value)))
    new = chance.choice([*VALUES, nested(60), nested(300)])
    if not path:
        return new
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    kind = chance.randrange(4)
    if kind == 0:
        del place[path[-1]]
    elif kind == 1 and isinstance(place, dict):
        place[chance.choice(["", "round", "x" * 300, "\0", "seeds"])] = place.pop(path[-1])
    else:
        place[path[-1]] = new
    return value


def mutate_json(chance, raw):
    """Return a mutated JSON file; of a file of lines, one line is mutated."""
    lines = raw.decode().splitlines()
    try:
        number = chance.randrange(len(lines))
        lines[number] = json.dumps(mutate_value(chance, json.loads(lines[number])))
        return ("\n".join(lines) + "\n").encode()
    except ValueError:  # a JSON file of several lines
        return json.dumps(mutate_value(chance, json.loads(raw))).encode()


def mutate_header(chance, raw):
    """Return a safetensors file with a mutated header, or with a mutated structure of the tree
    within it."""
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    if chance.random() < 0.5 and "fedtailor" in metadata:
        metadata["fedtailor"] = json.dumps(mutate_value(chance, json.loads(metadata["fedtailor"])))
    elif chance.random() < 0.4:
        name = chance.choice([name for name in header if name != "__metadata__"])
        kinds = ["BF16", "F8_E4M3", "F8_E5M2", "C64", "BOOL", "F64", "U64", "F4", "X"]
        header[name]["dtype"] = chance.choice(kinds)
        header[name]["shape"] = chance.choice(
            [header[name]["shape"], [], [0, 2**62], [2**40], [1] * 80]
        )
    else:
        header = mutate_value(chance, header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + raw[8 + length :]


def put_no_file(chance, path):
    """Put something at a path that is not a file with content; return what it is."""
    kinds = {
        "nothing": lambda: None,
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "an endless device": lambda: path.symlink_to("/dev/zero"),
        "a full device": lambda: path.symlink_to("/dev/full"),
        "a file elsewhere": lambda: path.symlink_to("/etc/passwd"),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a link to the folder": lambda: path.symlink_to("."),
        "a terabyte": lambda: (path.touch(), os.truncate(path, 2**40)),
        "many zeros": lambda: (path.touch(), os.truncate(path, 2**27)),
    }
    kind = chance.choice(list(kinds))
    kinds[kind]()
    return kind
