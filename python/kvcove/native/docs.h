// SPDX-License-Identifier: Apache-2.0
// What `help()` says of the classes and their calls.
#pragma once

namespace kvcove::python::docs {

inline constexpr char kPool[] = R"(A pool that this process uses; :func:`kvcove.open` gives it.

Thread-safe. A context manager that closes it. Not usable in a forked child.)";

inline constexpr char kOpenSession[] = R"(Open a session on a namespace.

Parameters
----------
name : str
    Tenant and model fingerprint, such as ``acme/llama-8b@5f3a/bf16``; at most 512 bytes.
engine : str
    All processes of an engine give the same; empty: this session is an engine of its own.
follow_always : bool
    Never close when another engine resets: this session's weights always follow.
assume_weights : bool
    On a namespace that engines reset, start open: the caller vouches for the weights.
preferred_segment : str
    In a cluster: the owner (host:port) that puts go to; empty: as ``placement`` says.
placement : str
    ``local-first``, ``free-ratio-first`` or ``random``; empty: the pool's.
replicas : int
    In a cluster: on how many hosts each value is stored, as far as there are as many.
borrow_bytes : int
    What :meth:`Session.borrow` lends of each owner's memory at the same time; 0: as much as a process
    may borrow, 1/32 of it. One value may always be borrowed.

Returns
-------
Session

Raises
------
InvalidError
    A name is too long or holds control characters.)";

inline constexpr char kPoolSettings[] = R"(Return what the master was started with; makes no call.

Returns
-------
tuple of float and str
    For how many seconds stores of mooncake.store hold what they read, 0: as they like; host:port of the
    master's admin endpoint, empty: there is none.)";

inline constexpr char kPoolScopes[] =
    R"(Return what this process's token may do, as the master said last; makes no call.

Returns
-------
list of str
    Scopes, such as ``["read", "write"]``; empty: everything, or the master does not say.)";

inline constexpr char kPoolStat[] = R"(Return what the pool holds, in bytes and objects.

Parameters
----------
timeout : float
    Seconds.

Raises
------
UnavailableError, TimedOutError)";

inline constexpr char kWaitPopulated[] = R"(Wait until puts meet no page faults any more.

Returns
-------
bool
    False when ``timeout`` seconds passed first.)";

inline constexpr char kClose[] = R"(End it. Calls that run in other threads end by themselves.)";

inline constexpr char kSession[] = R"(One namespace, as one engine sees it.

Thread-safe. Keys are ``str`` (their UTF-8) or ``bytes`` of 1 to 1,024 bytes; values have 1 byte to
256 MiB. A batch has at most 65,536 items. Every call ends by its ``timeout`` (seconds).)";

inline constexpr char kCapture[] =
    R"(Return what a put must carry: namespace, weight version, generation.

Capture it when the request is first scheduled, or computed again from its first token: it must be as
old as the oldest KV that the value depends on.

Parameters
----------
version : str
    Of the weights; empty: the namespace has no versions.
timeout : float
    Seconds.
leased : bool
    Also prove that the generation is the present one, by the lease of this host's owner or by the master;
    UnavailableError where neither can. For keys that contain the generation; a put's token needs no proof.

Raises
------
ClosedError
    Another engine has reset the namespace, and this one has not.
UnavailableError, TimedOutError, InvalidError, LimitError)";

inline constexpr char kPut[] = R"(Store values.

Parameters
----------
keys : sequence of str or bytes
values : sequence of buffer
    An item each: anything with the buffer protocol or DLPack in host memory, C-contiguous; a
    :class:`Memory`; or a list of such pieces, which are stored one behind the other.
token : Token, optional
    None: the generation is captured at the entry of the call, before a byte is read.
after : str, bytes or sequence of them, optional
    The chunk before the first item in its chain, or one for each item. By default each item follows
    the one before it in the batch: a chunk whose prefix is gone is useless, and is evicted first.
hints : Hints or sequence of them, optional
    What eviction may know: of all values, or one for each. Without, a batch is a request.
timeout : float
    Seconds.

Returns
-------
Results
    Codes: OK; EXISTS (the old value stays), IN_PROGRESS (somebody else puts the key), STALE (a reset
    came in between), CLOSED, NO_SPACE, LIMIT, INVALID (the key or the value is empty, or too large),
    TIMEOUT, UNAVAILABLE.

Raises
------
InvalidError
    Of the call as a whole: nothing was stored.)";

inline constexpr char kGetInto[] = R"(Read values into buffers.

Parameters
----------
keys : sequence of str or bytes
buffers : sequence of buffer
    An item each, writable: as in :meth:`put`. May be larger than the value; ``Results.nbytes`` says
    how much of it was written.
version : str
    Of the weights.
timeout : float
    Seconds.

Returns
-------
Results
    Codes: OK; MISS with its reason; BUFFER_TOO_SMALL (``nbytes``: what the value needs), INVALID,
    TIMEOUT, CORRUPT. The content of a buffer whose item is not OK is undefined.)";

inline constexpr char kBorrow[] = R"(Lend values where they lie in the memory of this host's owners.

Nothing is copied. The memory is protected until :meth:`Borrowed.release`: evictions, removals and resets leave it as
it is. What is on an owner's disk is brought into memory first.

Parameters
----------
keys : sequence of str or bytes
version : str
    Of the weights.
hold : float
    Seconds for which what is found is not evicted, if there is other room.
timeout : float
    Seconds, for the disk. 0: only what is in memory.

Returns
-------
Borrowed
    A context manager. Codes of its ``results``: OK; MISS with its reason; LIMIT (``nbytes``: its size): beyond what
    may be borrowed at the same time; INVALID, TIMEOUT. ``Result.elsewhere``: another host may have it, and
    :meth:`get_into` brings it into a buffer.)";

inline constexpr char kBorrowed[] = R"(Values in place, protected until they are released.

``loan[i]`` is a tuple of read-only memoryviews, the pieces of value ``i`` in order; it is empty where
``loan.results[i]`` is not OK. For one thread at a time. When the last view and this object are gone, the loan ends.)";

inline constexpr char kRevalidate[] =
    R"(Return whether what was read so far was valid at each moment until now.

Returns
-------
Results
    OK; or MISS with RESET, LEASE, CLOSED or UNAVAILABLE: what was read is to be thrown away. Values that were not OK
    keep their result. A value that was evicted or removed meanwhile is OK.)";

inline constexpr char kRelease[] = R"(Revalidate, and end the protection.

Every view raises ``ValueError`` from here on.

Returns
-------
Results
    As :meth:`revalidate` has them.

Raises
------
BufferError
    Something still uses a view, such as a numpy array: the loan goes on. Drop it, and release again.
InvalidError
    It was released before.)";

inline constexpr char kReserve[] = R"(Return memory of an owner of this host that becomes values.

Parameters
----------
keys : sequence of str or bytes
sizes : sequence of int
    Bytes of each value.
token : Token, optional
    None: the generation is captured at the entry of the call.
after : str, bytes or sequence of them, optional
    As in :meth:`put`.
hints : Hints or sequence of them, optional
    As in :meth:`put`.
timeout : float
    Seconds.

Returns
-------
Reserved
    A context manager, which gives back what is not committed. Codes of its ``results``: OK; EXISTS, IN_PROGRESS,
    STALE, CLOSED, NO_SPACE, LIMIT, INVALID, TIMEOUT, UNAVAILABLE. ``Result.elsewhere``: :meth:`put` stores it on
    another host. A key is kept from other writers for one second.

Raises
------
ClosedError, UnavailableError, TimedOutError
    Without a token: there was none to capture.)";

inline constexpr char kReserved[] = R"(Memory that becomes values when it is committed.

``space[i]`` is a tuple of writable memoryviews, the pieces of value ``i`` in order, together its size; it is empty
where ``space.results[i]`` is not OK. For one thread at a time.)";

inline constexpr char kDrop[] = R"(Give one value up: :meth:`commit` answers CORRUPT for it.)";

inline constexpr char kCommit[] = R"(Make everything that was reserved, and not dropped, values.

A repeat answers the same.

Parameters
----------
timeout : float
    Seconds.

Returns
-------
Results
    OK; EXISTS, STALE (a reset or a removal came after the token), TIMEOUT (the second was over), NO_SPACE,
    UNAVAILABLE.

Raises
------
BufferError
    Something still uses a view, such as a numpy array: nothing was committed.
InvalidError
    It was given up before.)";

inline constexpr char kAbort[] = R"(Give everything back; harmless after :meth:`commit`.

Parameters
----------
timeout : float
    Seconds. An owner that does not answer is told later.

Raises
------
BufferError
    Something still uses a view.)";

inline constexpr char kSegments[] =
    R"(Return the memory that :meth:`borrow` and :meth:`reserve` give pieces of.

Parameters
----------
timeout : float
    Seconds; one call an owner of this host.

Returns
-------
list of SegmentRange)";

inline constexpr char kSegmentRange[] =
    R"(The payload of one owner of this host, as this process maps it.

A device that reads and writes borrowed and reserved memory by itself registers it: from ``address`` on, as far as
``populated_bytes``, which grows to ``nbytes``. The range stays mapped as long as this object lives. ``number`` is that
of the mapping: an owner that has started anew has another. ``node`` is the NUMA node, -1: none.)";

inline constexpr char kGet[] = R"(Return values as bytes, None for what is not there.

Parameters
----------
keys : sequence of str or bytes
version : str
    Of the weights.
timeout : float
    Seconds.

Returns
-------
list of bytes or None)";

inline constexpr char kExists[] = R"(Look keys up. A hint: the get checks again.

Returns
-------
Results
    Codes: OK (``nbytes`` of the value), MISS with its reason, INVALID.)";

inline constexpr char kLongestPrefix[] =
    R"(Return the length of the leading run of keys that are there.

Stops at the first miss.)";

inline constexpr char kHold[] = R"(Keep what is there from being evicted, for up to ``seconds``.

At most 24 h, and a tenth of the memory a process; the oldest gives way. A held object may still be a
miss. In a cluster another host's owner holds what it now reads from its disk, and nothing else.

Returns
-------
Results
    As :meth:`exists`.)";

inline constexpr char kPin[] =
    R"(Pin objects that are in memory: for ``seconds``, or (None) hard, without an end.

Soft pins are evicted only when nothing else can be. Hard ones never are, nor demoted to a disk; they
have at most half of the memory (LIMIT). A reset voids both.

Parameters
----------
hard : bool
    Pin hard for ``seconds`` (0.001 to 86,400), for a rollout, say. The pin ends by itself, also when
    this process is killed; repeat the call to renew it: the later end holds.)";

inline constexpr char kUnpin[] = R"(Undo :meth:`pin`.)";

inline constexpr char kRemove[] =
    R"(Remove objects. Puts of these keys that are under way fail with STALE.)";

inline constexpr char kRemoveMatching[] = R"(Remove what matches; return how many.

Parameters
----------
pattern : str
    ``*`` stands for any bytes, ``?`` for one. Linear in the number of objects.)";

inline constexpr char kStat[] =
    R"(Return size, pins and holds of objects; None for what is not there.)";

inline constexpr char kList[] =
    R"(Return what is stored under keys that start with ``prefix``, in no order.

Walks over all objects of all owners that answer, on their disks, too: for people and rare calls.
``StoredObject.tier`` is ``"disk"`` for what lies there only. A key that a disk moves meanwhile may be
missed.

Raises
------
LimitError
    More than 2^20 keys.)";

inline constexpr char kWhere[] = R"(Return the owners (host:port) that hold each key.

Empty for a miss; ``["local"]`` in a pool of one host.)";

inline constexpr char kLocatedPrefix[] = R"(The leading keys of a prefix that are stored, and where.

Attributes
----------
keys : int
    Leading keys that have an owner.
reason : MissReason
    Why the next key has none; NONE: each key has one.
owners : list of OwnerPrefix
    Longest prefix first. Each has, in keys: ``prefix``, the leading ones that the ``owner`` has;
    ``memory_prefix``, those that it has in memory; ``memory`` and ``disk``, how many of all ``keys`` it
    has in memory, and on a disk only.)";

inline constexpr char kLocate[] = R"(Return how much of a prefix each owner has.

For a router that chooses the host of a request. A hint: nothing is held. In a cluster it costs one call to
the master, and no hit or miss is counted. :meth:`kvcove.engines.EngineShape.prefix_keys` makes the keys
of an engine's block hashes.

Parameters
----------
keys : sequence of str or bytes
    65,536 at most, in the order of the prefix.

Returns
-------
LocatedPrefix

Raises
------
InvalidError
    A key is not valid.
IncompatibleError
    The master is of an earlier version.)";

inline constexpr char kReset[] = R"(Void everything that was stored: a fence of O(1).

When it returns, no look-up or get that begins anywhere finds an object whose put was begun before.

Parameters
----------
version : str, optional
    The version that this engine has from now on. A change of version erases nothing; the current
    one, or none, voids what was stored.
all_void : bool
    An operator or trainer says that all is void: every session follows at once.
timeout : float
    Seconds. While no master leads, the call waits for one as long.

Raises
------
NotProvenError
    It is repeated in the background, and this session is closed until it is proven.
DeniedError, InvalidError
    This session may not reset, or what it names is wrong. Nothing is repeated, and this session is
    closed until a later reset that voids as much is proven.)";

inline constexpr char kPrune[] =
    R"(Declare older weight versions dead, and return how many have died by this call.

Dead is each version of this namespace that an engine has named earlier than ``before``: by its first
capture, put or look-up, whatever the versions are called. When it returns, no look-up or get that begins
anywhere finds a value of a dead version, and no put stores one. A capture under a dead version raises
:class:`DeniedError`, and a token of before is STALE. Values without a version remain. It may be repeated.

Parameters
----------
before : str
    The version that stays.
timeout : float
    Seconds. While no master leads, the call waits for one as long.

Raises
------
InvalidError
    Nobody has named ``before``.
NotProvenError
    They may be dead, or not. Call again; no session is closed.
DeniedError
    This session may not reset.)";

inline constexpr char kNameVersions[] = R"(Name the versions that this engine still uses.

Others are reclaimed first.)";

inline constexpr char kClosed[] =
    "Whether an unproven reset keeps this session from finding and storing.";

inline constexpr char kResults[] = R"(What became of each item of a batch.

A sequence of :class:`Result`. ``codes``, ``reasons`` and ``nbytes`` are memoryviews of all items: no
object an item is made.)";

inline constexpr char kMemory[] = R"(Memory by its address, as a buffer of a put or a get.

Parameters
----------
address : int
    Of memory that stays as it is until the call has ended. Nothing checks it.
nbytes : int)";

inline constexpr char kHints[] =
    R"(What a caller knows of a value, or of its request, and eviction may use.

All of it is optional, and none must be right: a hint that is wrong costs hits, nothing else.

Parameters
----------
output_tokens : int
    Length of the request's answer, also expected; 0: not known.
ephemeral : bool
    This value, and those behind it in its request, are mostly not asked for again: the output of a
    tool, search results.
session_ends : bool
    Nobody goes on from this request.
request_goes_on : bool
    More of this request follows in later batches. Without it a batch is a request.
priority : str
    Of the whole namespace, from now on: ``low``, ``normal`` or ``high``; empty: not said. Against a
    normal namespace one of high priority keeps four times as much memory, one of low priority a
    quarter. It changes nothing for a tenant's namespaces.)";

inline constexpr char kToken[] =
    R"(What a put is begun under. ``str()`` and :meth:`parse` take it to another process.)";

}  // namespace kvcove::python::docs
