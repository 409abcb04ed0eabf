# SPDX-License-Identifier: Apache-2.0
"""What differs from the original, and why: the table in docs/mooncake.md is made of this.

``python -m kvcove.mooncake compare --table`` prints it. What ``compare`` finds (compare.py, suite.py) is either
in a row of it, or is not explained.
"""

from __future__ import annotations

__all__ = ["ROWS", "explains", "table"]

_HEAD = ("call", "the rival", "kvcove", "why")

#: The call, what it answers there and here, and the reason, where the first three do not say it.
ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "`remove_all(force=True)` while puts are under way",
        "they may land afterwards",
        "refused: -300",
        "the fence is what kvcove is for",
    ),
    (
        "`remove_all(force=True)`, master dead",
        "-900 after 30 s",
        "negative after 2.5 s, repeated until it is proven",
        "a training loop must know",
    ),
    (
        "most calls before `setup`, after `close`",
        "crash",
        "-1010 (UNAVAILABLE_IN_CURRENT_STATUS)",
        "",
    ),
    (
        "`put_from` null or 0 bytes; parts of nothing (`put_parts`, `upsert_parts`)",
        "0",
        "-600",
        "nothing was stored",
    ),
    (
        "`batch_get_into_multi_buffers` with pieces that reach beyond the value",
        "-800",
        "the value, and its bytes",
        "",
    ),
    (
        "`get`, `get_batch`, `get_buffer` of values together larger than local_buffer_size",
        "empty for some",
        "the values",
        "",
    ),
    (
        "a read that fails for its buffer holds the value",
        "yes",
        "no: nothing was read",
        "",
    ),
    (
        "what a put session did not write",
        "whatever lay there",
        "zeros",
        "",
    ),
    (
        "addresses that are no memory",
        "crash",
        "-600, `register_buffer` of them too",
        "memory that is registered, or mapped with the right to read or write, counts",
    ),
    (
        "memory without rights, in `register_buffer`",
        "0, and the process ends with SIGSEGV when it is used",
        "-600 where it may not be read; where it may not be written, reads into it answer -600",
        "",
    ),
    (
        "`unregister_buffer` of memory that is not registered",
        "-600; from 0.3.14 on -12",
        "-600",
        "a program that knows both takes either for an error",
    ),
    (
        "`remove` after a second `put` of the key",
        "0; from 0.3.14 on -706",
        "0",
        "a put that answers 0 because the value is there reads nothing, so it leases nothing",
    ),
    (
        "`put_tensor_with_parallelism` and its neighbours, `ParallelAxis`",
        "until 0.3.13.post1",
        "there",
        "programs of before 0.3.14 use them",
    ),
    (
        "structured objects: values without dimensions, jagged tensors of which another dimension differs, a store that "
        "registers no memory, batches of a removal",
        "errors, wrong bytes, two batches",
        "come back; one batch",
        "",
    ),
    (
        "arrays of Python objects, as values",
        "0, addresses of this process are stored",
        "TypeError",
        "nobody can read them",
    ),
    (
        "a size that leaves a registered buffer, in any call but `get_into_ranges`",
        "goes on behind the end over TCP",
        "-600, nothing is touched",
        "the caller has said where its buffer ends; `get_into_ranges` answers -600 in both, and -600 for memory that is not registered",
    ),
    (
        "no room for a value of tens of MiB, after many puts and removals",
        "-200",
        "it is stored, others give way",
        "",
    ),
    (
        "others after a value of tens of MiB, after many puts and removals",
        "evicted: what is removed gives its memory back late",
        "stay",
        "",
    ),
    (
        "`setup` twice",
        "-1 or 0",
        "0, the first stays",
        "",
    ),
    (
        "`setup`, nobody answers",
        "-600 or -1, after up to a minute",
        "-600 after 5 s",
        "",
    ),
    (
        "a part along another dimension, or of another number of parts, under a rank whose own part is there",
        "that part, whatever was asked for",
        "the part that was asked for",
        "a wrong shape under a success",
    ),
    (
        "a part of what several writers have stored, in another split",
        "None",
        "that part",
        "",
    ),
    (
        "a tensor that was split in one part",
        "None, if it was stored from an address",
        "the tensor",
        "",
    ),
    (
        "`-default_kv_lease_ttl` beyond 24 h",
        "taken",
        "`mooncake_master` refuses it",
        "the pool holds nothing longer; a pin does",
    ),
    (
        "a strided memoryview",
        "its first bytes, in a row",
        "its elements",
        "wrong bytes are none",
    ),
    (
        "`get_batch([])`",
        '`[b""]`',
        "`[]`",
        "",
    ),
    (
        "two upserts of one key at once",
        "0 for both",
        "0 for one at a time, -703 when it did not come to it",
        "",
    ),
    (
        "an upsert",
        "in place",
        "remove and put: a read finds the old, the new, or for a moment none",
        "a value never changes under a reader",
    ),
    (
        "reads during upserts and removals",
        "other bytes were seen (eight threads, 3 s)",
        "whole values of one put",
        "",
    ),
    (
        "`get(rows=[...])` of a column of Python values",
        "ValueError",
        "those rows",
        "",
    ),
    (
        "a list column with an empty row (`[[1], []]`)",
        "floating point",
        "integers stay integers",
        "",
    ),
    (
        "columns of bfloat16 tensors, of tensors that require a gradient, of lists or dicts of tensors beside each other",
        "an error",
        "the values",
        "",
    ),
    (
        "`raw_destination`",
        "TypeError",
        "a destination",
        "",
    ),
    (
        "`put` of what is neither a batch nor a mapping",
        "an empty reference",
        "TypeError",
        "nothing was stored",
    ),
    (
        "`put` that the store refused in part",
        "parts may stay",
        "what was written is removed",
        "",
    ),
    (
        "a handle of another version",
        "taken",
        "ValueError",
        "",
    ),
    (
        "NVMe-oF and DFS replicas",
        "-600, -1601",
        "-1012 (NOT_SUPPORTED)",
        "they are not there",
    ),
    (
        "a hard pin without room",
        "evicts nothing, then -200",
        "-200; pins have at most half of the memory",
        "",
    ),
    (
        "keys longer than 1,024 bytes",
        "stored",
        "stored under `kvcove-long-key-sha256:<hex>`; lists show that name",
        "the pool's limit",
    ),
    (
        "values larger than 256 MiB",
        "stored",
        "-600",
        "the pool's limit",
    ),
    (
        "`remove_by_regex`",
        "ECMAScript, in the master",
        "Python's `re`, in a process beside the caller, which lists all keys, for 10 s at most; expressions of letters, `.`, `.*`, small classes and alternatives in the owners",
        "no caller can stall the master",
    ),
    (
        "leases",
        "protect memory for their time",
        "guide eviction for their time, within a tenth of the segment; memory is protected by readers themselves",
        "no timer decides about memory",
    ),
    (
        "a read's lease on another host's owner",
        "counts in the master",
        "not told to that owner: `remove` there does not answer -706",
        "",
    ),
    (
        "`batch_replica_clear` of a key that this store put, another one removed and put anew",
        "stays: the value is the other one's",
        "removed: a store knows its keys, not its values",
        "a cache loses a value, never serves a wrong one",
    ),
    (
        "`batch_replica_clear` of what this store put long ago",
        "removed",
        "may stay once the store has put a million other keys since, and stays after two million",
        "what it remembers has a bound",
    ),
    (
        "`BufferPool(max_bytes=...)`",
        "does not bound what is lent",
        "bounds it",
        "",
    ),
    (
        "`mount_segment(path)`",
        "maps the file",
        "gives as much memory of kvcove's own; one warning",
        "",
    ),
    (
        "SSD offload",
        "as it says",
        "as it says, with a disk an owner ([SSD offload](#ssd-offload))",
        "",
    ),
    (
        "snapshots, CXL, KV events of the master, tenants' quotas",
        "as it says",
        "not here: the launch is taken, and a line says what is there instead",
        "",
    ),
    (
        "HA (`-enable_ha`)",
        "etcd, Redis or Kubernetes; standbys follow a log",
        "etcd; standbys follow no log, for owners tell a new leader what they hold "
        "([Several masters](#several-masters))",
        "one store of facts, one way to lose nothing",
    ),
    (
        "the master listens on",
        "0.0.0.0",
        "loopback, unless credentials, `KVCOVE_INSECURE=1` or an address say otherwise ([Several hosts](#several-hosts))",
        "safe by default",
    ),
    (
        "`mooncake_client` at `-port`",
        "RPC",
        "HTTP: `/health`, `/v1/pool`, `/metrics`",
        "thin clients read shared memory themselves",
    ),
    (
        "segments in descriptors and tasks",
        "descriptors name another port than `get_hostname`",
        "one name everywhere, also in tasks",
        "",
    ),
    (
        "names of arguments in signatures",
        "`arg0`, `arg1` for most",
        "their names",
        "",
    ),
    (
        "a manifest that lies",
        "believed",
        "an error, nothing is read or written",
        "",
    ),
    (
        "arrays in a buffer pool",
        "buffers are taken back while arrays in them are in use",
        "not before they are gone",
        "wrong bytes are none",
    ),
)


def explains(words: str) -> bool:
    """Whether a row is about this."""
    return any(words in call for call, *_ in ROWS)


def table() -> str:
    """Return the table as Markdown."""
    rows = (_HEAD, ("---",) * len(_HEAD), *ROWS)
    return "".join("| " + " | ".join(row).replace("|  |", "| |") + " |\n" for row in rows)
