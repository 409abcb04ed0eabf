import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

class Code(enum.IntEnum):
    OK = 0

    MISS = 1

    TIMEOUT = 2

    BUFFER_BUSY = 3

    STALE = 4

    CLOSED = 5

    NO_SPACE = 6

    EXISTS = 7

    IN_PROGRESS = 8

    DENIED = 9

    INCOMPATIBLE = 10

    CORRUPT = 11

    INVALID = 12

    UNAVAILABLE = 13

    LIMIT = 14

    BUFFER_TOO_SMALL = 15

    NOT_PROVEN = 16

    INTERNAL = 17

    NOT_LISTED = 18

class MissReason(enum.IntEnum):
    NONE = 0

    NEVER_PUT = 1

    EVICTED = 2

    REMOVED = 3

    RESET = 4

    LEASE = 5

    CLOSED = 6

    UNAVAILABLE = 7

    RACED = 8

    LIMITED = 9

    OWNER_GONE = 10

    WARMING_UP = 11

    TIMEOUT = 12

    DENIED = 13

    DISK_DAMAGED = 14

    DISK_FAILED = 15

    DISK_TIMEOUT = 16

    NO_ROOM = 17

    SHARD_AWAY = 18

class Result:
    @property
    def code(self) -> Code: ...
    @property
    def reason(self) -> MissReason: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def listed(self) -> bool: ...
    @property
    def elsewhere(self) -> bool: ...
    @property
    def ok(self) -> bool: ...
    def __repr__(self) -> str: ...

class Results:
    """
    What became of each item of a batch.

    A sequence of :class:`Result`. ``codes``, ``reasons`` and ``nbytes`` are memoryviews of all items: no
    object an item is made.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, arg: int, /) -> Result: ...
    @property
    def codes(self) -> Annotated[memoryview, dict(int)]: ...
    @property
    def reasons(self) -> Annotated[memoryview, dict(int)]: ...
    @property
    def nbytes(self) -> Annotated[memoryview, dict(int)]: ...
    @property
    def all_ok(self) -> bool: ...
    @property
    def ok_count(self) -> int: ...
    def __repr__(self) -> str: ...

class Memory:
    """
    Memory by its address, as a buffer of a put or a get.

    Parameters
    ----------
    address : int
        Of memory that stays as it is until the call has ended. Nothing checks it.
    nbytes : int
    """

    def __init__(self, address: int, nbytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __repr__(self) -> str: ...

class Token:
    """
    What a put is begun under. ``str()`` and :meth:`parse` take it to another process.
    """

    def __str__(self) -> str: ...
    def __repr__(self) -> str: ...
    def __eq__(self, arg: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @staticmethod
    def parse(text: str) -> Token: ...

class Hints:
    """
    What a caller knows of a value, or of its request, and eviction may use.

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
        quarter. It changes nothing for a tenant's namespaces.
    """

    def __init__(
        self,
        *,
        output_tokens: int = 0,
        ephemeral: bool = False,
        session_ends: bool = False,
        request_goes_on: bool = False,
        priority: str = "",
    ) -> None: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def ephemeral(self) -> bool: ...
    @property
    def session_ends(self) -> bool: ...
    @property
    def request_goes_on(self) -> bool: ...
    @property
    def priority(self) -> str: ...
    def __repr__(self) -> str: ...

class ObjectStat:
    @property
    def nbytes(self) -> int: ...
    @property
    def extents(self) -> int: ...
    @property
    def hard_pinned(self) -> bool: ...
    @property
    def soft_pinned(self) -> bool: ...
    @property
    def held(self) -> bool: ...
    def __repr__(self) -> str: ...

class StoredObject:
    @property
    def key(self) -> bytes: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def hard_pinned(self) -> bool: ...
    @property
    def soft_pinned(self) -> bool: ...
    @property
    def held(self) -> bool: ...
    @property
    def tier(self) -> str: ...
    def __repr__(self) -> str: ...

class OwnerPrefix:
    @property
    def owner(self) -> str: ...
    @property
    def prefix(self) -> int: ...
    @property
    def memory_prefix(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def disk(self) -> int: ...
    def __repr__(self) -> str: ...

class LocatedPrefix:
    """
    The leading keys of a prefix that are stored, and where.

    Attributes
    ----------
    keys : int
        Leading keys that have an owner.
    reason : MissReason
        Why the next key has none; NONE: each key has one.
    owners : list of OwnerPrefix
        Longest prefix first. Each has, in keys: ``prefix``, the leading ones that the ``owner`` has;
        ``memory_prefix``, those that it has in memory; ``memory`` and ``disk``, how many of all ``keys`` it
        has in memory, and on a disk only.
    """

    @property
    def keys(self) -> int: ...
    @property
    def reason(self) -> MissReason: ...
    @property
    def owners(self) -> list[OwnerPrefix]: ...
    def __repr__(self) -> str: ...

class PoolStat:
    @property
    def payload_bytes(self) -> int: ...
    @property
    def populated_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...
    @property
    def object_bytes(self) -> int: ...
    @property
    def objects(self) -> int: ...
    @property
    def puts(self) -> int: ...
    @property
    def hits(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def removals(self) -> int: ...
    @property
    def stale_puts(self) -> int: ...
    @property
    def resets(self) -> int: ...
    @property
    def voided(self) -> int: ...
    @property
    def voided_bytes(self) -> int: ...
    @property
    def pinned_bytes(self) -> int: ...
    @property
    def timed_pin_bytes(self) -> int: ...
    @property
    def refused_pins(self) -> int: ...
    @property
    def ended_pins(self) -> int: ...
    @property
    def disk_capacity_bytes(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...
    @property
    def disk_objects(self) -> int: ...
    @property
    def disk_aside(self) -> int: ...
    @property
    def disk_puts(self) -> int: ...
    @property
    def disk_hits(self) -> int: ...
    @property
    def disk_not_worth(self) -> int: ...
    @property
    def disk_over_rate(self) -> int: ...
    @property
    def disk_dropped_full(self) -> int: ...
    @property
    def disk_errors(self) -> int: ...
    @property
    def disk_damaged(self) -> int: ...
    @property
    def disk_put_bytes(self) -> int: ...
    @property
    def disk_written_bytes(self) -> int: ...
    @property
    def disk_kept(self) -> int: ...
    @property
    def disk_dropped_other(self) -> int: ...
    @property
    def disk_hit_bytes(self) -> int: ...
    @property
    def disk_misses(self) -> int: ...
    @property
    def disk_timeouts(self) -> int: ...
    @property
    def disk_failed(self) -> int: ...
    @property
    def disk_no_room(self) -> int: ...
    @property
    def disk_asides(self) -> int: ...
    def __repr__(self) -> str: ...

class Pool:
    """
    A pool that this process uses; :func:`kvcove.open` gives it.

    Thread-safe. A context manager that closes it. Not usable in a forked child.
    """

    @property
    def form(self) -> str: ...
    def __repr__(self) -> str: ...
    def session(
        self,
        name: str,
        *,
        engine: str = "",
        follow_always: bool = False,
        assume_weights: bool = False,
        preferred_segment: str = "",
        placement: str = "",
        replicas: int = 1,
        borrow_bytes: int = 0,
    ) -> Session:
        """
        Open a session on a namespace.

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
            A name is too long or holds control characters.
        """

    def settings(self) -> tuple[float, str]:
        """
        Return what the master was started with; makes no call.

        Returns
        -------
        tuple of float and str
            For how many seconds stores of mooncake.store hold what they read, 0: as they like; host:port of the
            master's admin endpoint, empty: there is none.
        """

    def scopes(self) -> list[str]:
        """
        Return what this process's token may do, as the master said last; makes no call.

        Returns
        -------
        list of str
            Scopes, such as ``["read", "write"]``; empty: everything, or the master does not say.
        """

    def stat(self, *, timeout: float = 1.0) -> PoolStat:
        """
        Return what the pool holds, in bytes and objects.

        Parameters
        ----------
        timeout : float
            Seconds.

        Raises
        ------
        UnavailableError, TimedOutError
        """

    def wait_populated(self, timeout: float = 60.0) -> bool:
        """
        Wait until puts meet no page faults any more.

        Returns
        -------
        bool
            False when ``timeout`` seconds passed first.
        """

    def close(self) -> None:
        """End it. Calls that run in other threads end by themselves."""

    def __enter__(self) -> Pool: ...
    def __exit__(self, *args: object) -> None: ...

def open_pool(address: str, timeout: float) -> Pool: ...
def default_socket_path() -> str: ...
def why_no_owner(path: str) -> str | None:
    """Why no owner serves a socket; None if one may. Raises where that cannot be known."""

def parse_size(text: str) -> int:
    """Bytes of a size such as "4GiB"."""

class Session:
    """
    One namespace, as one engine sees it.

    Thread-safe. Keys are ``str`` (their UTF-8) or ``bytes`` of 1 to 1,024 bytes; values have 1 byte to
    256 MiB. A batch has at most 65,536 items. Every call ends by its ``timeout`` (seconds).
    """

    def __repr__(self) -> str: ...
    def capture(self, version: str = "", *, timeout: float = 1.0, leased: bool = False) -> Token:
        """
        Return what a put must carry: namespace, weight version, generation.

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
        UnavailableError, TimedOutError, InvalidError, LimitError
        """

    def put(
        self,
        keys: Sequence[str | bytes],
        values: Sequence[Any],
        *,
        token: Token | None = None,
        after: str | bytes | Sequence[str | bytes] | None = None,
        hints: Hints | Sequence[Hints] | None = None,
        timeout: float = 1.0,
    ) -> Results:
        """
        Store values.

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
            Of the call as a whole: nothing was stored.
        """

    def get_into(
        self,
        keys: Sequence[str | bytes],
        buffers: Sequence[Any],
        *,
        version: str = "",
        timeout: float = 1.0,
    ) -> Results:
        """
        Read values into buffers.

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
            TIMEOUT, CORRUPT. The content of a buffer whose item is not OK is undefined.
        """

    def get(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 1.0
    ) -> list[bytes | None]:
        """
        Return values as bytes, None for what is not there.

        Parameters
        ----------
        keys : sequence of str or bytes
        version : str
            Of the weights.
        timeout : float
            Seconds.

        Returns
        -------
        list of bytes or None
        """

    def exists(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 1.0
    ) -> Results:
        """
        Look keys up. A hint: the get checks again.

        Returns
        -------
        Results
            Codes: OK (``nbytes`` of the value), MISS with its reason, INVALID.
        """

    def longest_prefix(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 1.0
    ) -> int:
        """
        Return the length of the leading run of keys that are there.

        Stops at the first miss.
        """

    def hold(
        self,
        keys: Sequence[str | bytes],
        seconds: float = 5.0,
        *,
        version: str = "",
        timeout: float = 1.0,
    ) -> Results:
        """
        Keep what is there from being evicted, for up to ``seconds``.

        At most 24 h, and a tenth of the memory a process; the oldest gives way. A held object may still be a
        miss. In a cluster another host's owner holds what it now reads from its disk, and nothing else.

        Returns
        -------
        Results
            As :meth:`exists`.
        """

    def pin(
        self,
        keys: Sequence[str | bytes],
        seconds: float | None = None,
        *,
        hard: bool = False,
        version: str = "",
        timeout: float = 1.0,
    ) -> Results:
        """
        Pin objects that are in memory: for ``seconds``, or (None) hard, without an end.

        Soft pins are evicted only when nothing else can be. Hard ones never are, nor demoted to a disk; they
        have at most half of the memory (LIMIT). A reset voids both.

        Parameters
        ----------
        hard : bool
            Pin hard for ``seconds`` (0.001 to 86,400), for a rollout, say. The pin ends by itself, also when
            this process is killed; repeat the call to renew it: the later end holds.
        """

    def unpin(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 1.0
    ) -> Results:
        """Undo :meth:`pin`."""

    def remove(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 2.5
    ) -> Results:
        """Remove objects. Puts of these keys that are under way fail with STALE."""

    def remove_matching(self, pattern: str, *, version: str = "", timeout: float = 2.5) -> int:
        """
        Remove what matches; return how many.

        Parameters
        ----------
        pattern : str
            ``*`` stands for any bytes, ``?`` for one. Linear in the number of objects.
        """

    def stat(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 1.0
    ) -> list[ObjectStat | None]:
        """Return size, pins and holds of objects; None for what is not there."""

    def stored(
        self, prefix: str = "", *, version: str = "", timeout: float = 2.5
    ) -> list[StoredObject]:
        """
        Return what is stored under keys that start with ``prefix``, in no order.

        Walks over all objects of all owners that answer, on their disks, too: for people and rare calls.
        ``StoredObject.tier`` is ``"disk"`` for what lies there only. A key that a disk moves meanwhile may be
        missed.

        Raises
        ------
        LimitError
            More than 2^20 keys.
        """

    def where(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 1.0
    ) -> list[list[str]]:
        """
        Return the owners (host:port) that hold each key.

        Empty for a miss; ``["local"]`` in a pool of one host.
        """

    def locate(
        self, keys: Sequence[str | bytes], *, version: str = "", timeout: float = 1.0
    ) -> LocatedPrefix:
        """
        Return how much of a prefix each owner has.

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
            The master is of an earlier version.
        """

    def reset(
        self, version: str | None = None, *, all_void: bool = False, timeout: float = 2.5
    ) -> None:
        """
        Void everything that was stored: a fence of O(1).

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
            closed until a later reset that voids as much is proven.
        """

    def prune(self, before: str, *, timeout: float = 2.5) -> int:
        """
        Declare older weight versions dead, and return how many have died by this call.

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
            This session may not reset.
        """

    def name_versions(self, versions: Sequence[str], *, timeout: float = 1.0) -> None:
        """
        Name the versions that this engine still uses.

        Others are reclaimed first.
        """

    @property
    def closed(self) -> bool:
        """Whether an unproven reset keeps this session from finding and storing."""

    def close(self) -> None:
        """End it. Calls that run in other threads end by themselves."""

    def __enter__(self) -> Session: ...
    def __exit__(self, *args: object) -> None: ...
    def borrow(
        self,
        keys: Sequence[str | bytes],
        *,
        version: str = "",
        hold: float = 0.0,
        timeout: float = 1.0,
    ) -> Borrowed:
        """
        Lend values where they lie in the memory of this host's owners.

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
            :meth:`get_into` brings it into a buffer.
        """

    def reserve(
        self,
        keys: Sequence[str | bytes],
        sizes: Sequence[int],
        *,
        token: Token | None = None,
        after: str | bytes | Sequence[str | bytes] | None = None,
        hints: Hints | Sequence[Hints] | None = None,
        timeout: float = 1.0,
    ) -> Reserved:
        """
        Return memory of an owner of this host that becomes values.

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
            Without a token: there was none to capture.
        """

    def segments(self, *, timeout: float = 1.0) -> list[SegmentRange]:
        """
        Return the memory that :meth:`borrow` and :meth:`reserve` give pieces of.

        Parameters
        ----------
        timeout : float
            Seconds; one call an owner of this host.

        Returns
        -------
        list of SegmentRange
        """

class Borrowed:
    """
    Values in place, protected until they are released.

    ``loan[i]`` is a tuple of read-only memoryviews, the pieces of value ``i`` in order; it is empty where
    ``loan.results[i]`` is not OK. For one thread at a time. When the last view and this object are gone, the loan ends.
    """

    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def __getitem__(self, arg: int, /) -> tuple[memoryview, ...]: ...
    @property
    def results(self) -> Results: ...
    @property
    def nbytes(self) -> int: ...
    def revalidate(self) -> Results:
        """
        Return whether what was read so far was valid at each moment until now.

        Returns
        -------
        Results
            OK; or MISS with RESET, LEASE, CLOSED or UNAVAILABLE: what was read is to be thrown away. Values that were not OK
            keep their result. A value that was evicted or removed meanwhile is OK.
        """

    def release(self) -> Results:
        """
        Revalidate, and end the protection.

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
            It was released before.
        """

    def __enter__(self) -> Borrowed: ...
    def __exit__(self, *args: object) -> None: ...

class Reserved:
    """
    Memory that becomes values when it is committed.

    ``space[i]`` is a tuple of writable memoryviews, the pieces of value ``i`` in order, together its size; it is empty
    where ``space.results[i]`` is not OK. For one thread at a time.
    """

    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def __getitem__(self, arg: int, /) -> tuple[memoryview, ...]: ...
    @property
    def results(self) -> Results: ...
    @property
    def nbytes(self) -> int: ...
    def drop(self, index: int) -> None:
        """Give one value up: :meth:`commit` answers CORRUPT for it."""

    def commit(self, *, timeout: float = 1.0) -> Results:
        """
        Make everything that was reserved, and not dropped, values.

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
            It was given up before.
        """

    def abort(self, *, timeout: float = 1.0) -> None:
        """
        Give everything back; harmless after :meth:`commit`.

        Parameters
        ----------
        timeout : float
            Seconds. An owner that does not answer is told later.

        Raises
        ------
        BufferError
            Something still uses a view.
        """

    def __enter__(self) -> Reserved: ...
    def __exit__(self, *args: object) -> None: ...

class SegmentRange:
    """
    The payload of one owner of this host, as this process maps it.

    A device that reads and writes borrowed and reserved memory by itself registers it: from ``address`` on, as far as
    ``populated_bytes``, which grows to ``nbytes``. The range stays mapped as long as this object lives. ``number`` is that
    of the mapping: an owner that has started anew has another. ``node`` is the NUMA node, -1: none.
    """

    @property
    def number(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def populated_bytes(self) -> int: ...
    @property
    def node(self) -> int: ...
    def __repr__(self) -> str: ...

class Queue:
    def __init__(self, capacity: int = 1024) -> None: ...
    def fileno(self) -> int: ...
    def next(self, timeout: float = 0.0) -> tuple[int, Any, bool] | None: ...
    def start_put(
        self,
        session: Session,
        keys: object,
        values: object,
        token: Token | None,
        after: object | None,
        hints: object | None,
        timeout: float,
    ) -> int: ...
    def start_get_into(
        self, session: Session, keys: object, buffers: object, version: str, timeout: float
    ) -> int: ...
    def start_keys(
        self,
        session: Session,
        kind: str,
        keys: object,
        seconds: float | None,
        version: str,
        timeout: float,
    ) -> int: ...
    def start_longest_prefix(
        self, session: Session, keys: object, version: str, timeout: float
    ) -> int: ...
    def start_remove_matching(
        self, session: Session, pattern: str, version: str, timeout: float
    ) -> int: ...
    def start_reset(
        self, session: Session, version: str | None, all_void: bool, timeout: float
    ) -> int: ...
    def start_prune(self, session: Session, before: str, timeout: float) -> int: ...

class Owner:
    @property
    def address(self) -> str: ...
    def __repr__(self) -> str: ...
    def unmount_disk(self) -> None: ...
    def close(self) -> None: ...

def open_owner(
    *,
    master: str,
    memory: int,
    listen: str,
    advertise: str = "",
    socket_path: str,
    credentials: str = "",
    tls_authority: str = "",
    tls_certificate: str = "",
    tls_key: str = "",
    disk: str = "",
    disk_admit: str = "policy",
    data: str = "",
    transport: str = "tcp",
    devices: str = "",
) -> Owner: ...
def find_master(master: str, *, timeout: float) -> str:
    """HOST:PORT of the master that leads, as etcd://HOST:2379/PREFIX names it; of a list the first one."""

class EngineShape:
    def __init__(
        self,
        *,
        space: str,
        model_name: str,
        model: str,
        kv_dtype: str,
        hashing: str,
        hash_tokens: int,
        tp: int,
        pp: int,
        pcp: int,
        dcp: int,
        interleave: int,
        layers: str,
        store_tp: int,
        groups: Sequence[tuple[str, int, int, int, str]],
    ) -> None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def stride_tokens(self) -> int: ...
    @property
    def world(self) -> int: ...
    def objects(self, group: int) -> tuple[int, int]:
        """How many objects a group's chunk is; of them, those of a rank."""

    def prefix_tags(self) -> tuple[list[str], int]:
        """
        Return the beginnings of the keys of a prefix's chunk, and how many hashes it has.
        """

    def prefix_keys(self, hashes: list[bytes], adapter: str = "") -> list[bytes]:
        """
        Return the keys of a prefix's whole chunks, of each one for each tag.
        """

class SchedulerRole:
    def __init__(
        self,
        shape: EngineShape,
        pool: Pool,
        *,
        engine: str,
        pool_address: str,
        versions: str,
        lookup_budget: float,
        lookup_timeout: float,
        hold: float,
        reset_timeout: float,
        load_async: bool,
        lookup: bool,
        save: bool,
        save_decoded: bool,
        events: bool,
        closed_on_reset_failure: bool,
        assume_weights: bool,
        blocks: int,
        door: str = "",
        drop_last_stride: bool = False,
        trust_siblings: bool = False,
        load_when: str = "always",
        save_wait: float = 0.0,
    ) -> None: ...
    def hint(
        self, request: str, output_tokens: int, ephemeral_from: int, session_ends: bool
    ) -> None: ...
    def matched(
        self,
        request: str,
        tokens: int,
        prompt_tokens: int,
        salt: str,
        hashes: list[bytes],
        computed: int,
        adapter: int = 0,
        waits_for_saves: bool = True,
    ) -> tuple[int | None, bool]: ...
    def allocated(
        self, request: str, external: int, blocks: Callable[[], Sequence[Sequence[int]]]
    ) -> None: ...
    def schedule(
        self,
        request: str,
        tokens: int,
        prompt_tokens: int,
        salt: str,
        hashes: list[bytes],
        computed: int,
        scheduled: int,
        started: bool,
        blocks: Callable[[], Sequence[Sequence[int]]],
        adapter: int = 0,
    ) -> None: ...
    def has_adapter(self, adapter: int) -> bool: ...
    def copied(self, copies: Sequence[tuple[int, int]]) -> None: ...
    def finished(self, request: str) -> None: ...
    def build_plan(self) -> tuple[bytes, list[int]]: ...
    def take_unpins(self) -> list[int]: ...
    def pending(self) -> bool: ...
    def on_report(self, report: bytes) -> None: ...
    def load_failed(self, request: str, blocks: Sequence[int]) -> None: ...
    def load_ended(self, request: str) -> bool: ...
    def tiers(self, request: str) -> list[int]: ...
    def reset(self) -> bool: ...
    def weights_changing(self) -> None: ...
    def weights_changed(self) -> None: ...
    def start_with(self, fingerprints: Sequence[str]) -> None: ...
    def set_version(self, version: str) -> None: ...
    def takes_peers(self) -> tuple[int, str] | None: ...
    def set_peers(self, number: int, peers: Sequence[str], alone: bool) -> None: ...
    @property
    def version(self) -> str: ...
    def own_cache_cleared(self) -> None: ...
    def take_events(self) -> list[tuple[str, str, int, int, list[bytes], bytes, str]]: ...
    def stats(self) -> dict[str, int]: ...
    def take_stats(self) -> dict[str, int] | None: ...
    @staticmethod
    def gauges() -> list[str]: ...
    @staticmethod
    def counts() -> list[tuple[str, str, str]]:
        """
        Name, kind (counter, gauge, bucket) and help of everything that is counted.
        """

    def close(self) -> None: ...

def told_of(
    requests: list[str],
    computed: list[int],
    scheduled: dict[str, int],
    started: set[str],
    chunk_tokens: int,
) -> list[int]: ...
def loads_of(plan: bytes) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the blocks that a plan's loads write: of each request, group and block."""

class WorkerRole:
    def __init__(
        self,
        shape: EngineShape,
        *,
        tp: int,
        pp: int,
        pcp: int,
        engine: str,
        threads: int,
        timeout: float,
        fingerprints: bool,
        tier_log: bool,
        preferred_segment: str,
        priority: str = "",
        device_ring: int = 67108864,
        device_staging: int = 100663296,
        device_threshold: int = -1,
        layer_parts: int = 1,
        device_pin: int = -1,
    ) -> None: ...
    @property
    def number(self) -> int: ...
    def register(
        self, layers: Sequence[tuple[str, int, int, int, Sequence[tuple[str, int, int]]]]
    ) -> None: ...
    def unregister(self) -> bool: ...
    def chunk_bytes(self) -> list[int]: ...
    def begin(self, plan: bytes, stream: int = 0) -> bool: ...
    def wait_for_sync_loads(self, stream: int = 0) -> None: ...
    def wait_for_layer(self, layer: str, stream: int) -> None: ...
    def finish_step(self, ready: object | None, stream: int = 0) -> None: ...
    def take_ended(self) -> tuple[list[str], list[int], list[str]] | None: ...
    def take_report(self) -> bytes | None: ...
    def weights_changing(self) -> None: ...
    def scheduler_closed(self) -> bool: ...
    def weights_moved(self) -> None: ...
    def set_adapters(self, digests: Mapping[int, str]) -> None: ...
    def set_fingerprint(self, fingerprint: str) -> None: ...
    def close(self) -> None: ...

def fingerprint(pieces: Sequence[tuple[int, int]]) -> str:
    """128 bits of host memory as hex digits, of (address, bytes) in order."""

class Store:
    def __init__(
        self, *, timeout: float, lease: float, prefetches: bool = True, wait_for_room: float = 0.0
    ) -> None: ...
    def register_buffer(self, pool: Pool, address: int, size: int) -> int: ...
    def register_allocation(self, address: int, size: int) -> int: ...
    def unregister_buffer(self, address: int) -> int: ...
    def batch_is_exist(
        self, session: Session, keys: Sequence[str | bytes], prefetches: bool | None = None
    ) -> list[int]: ...
    def batch_sizes(
        self, session: Session, keys: Sequence[str | bytes], hold: bool
    ) -> list[int]: ...
    def batch_places(
        self, session: Session, keys: Sequence[str | bytes]
    ) -> list[list[tuple[str, bool, int]]]: ...
    def disk_reads(self) -> int: ...
    def batch_get(
        self, session: Session, keys: Sequence[str | bytes], writable: bool = False
    ) -> list[Any]: ...
    def batch_get_buffer(
        self, session: Session, keys: Sequence[str | bytes]
    ) -> list[BufferHandle | None]: ...
    def batch_get_into(
        self,
        session: Session,
        keys: Sequence[str | bytes],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        several: bool,
    ) -> list[int]: ...
    def batch_put_from(
        self,
        session: Session,
        keys: Sequence[str | bytes],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        several: bool,
        replace: bool,
    ) -> list[int]: ...
    def batch_put(
        self,
        session: Session,
        keys: Sequence[str | bytes],
        values: Sequence[Any],
        token: Token | None,
        largest: int,
        replace: bool,
    ) -> list[int]: ...
    def was_put_here(self, keys: object) -> list[bool]: ...
    def batch_remove(
        self, session: Session, keys: Sequence[str | bytes], force: bool
    ) -> list[int]: ...
    def copy_ranges(
        self,
        values: Sequence[Any],
        all_offsets: Sequence[Any],
        all_addresses: Sequence[Any],
        all_sizes: Sequence[Any],
        out: bool,
    ) -> list[int]: ...
    def get_ranges(
        self,
        session: Session,
        buffer: int,
        keys: Sequence[str | bytes],
        all_to: Sequence[Any],
        all_from: Sequence[Any],
        all_sizes: Sequence[Any],
    ) -> list[list[int]]: ...
    def is_registered(self, address: int) -> bool: ...
    def read(self, address: int, size: int) -> bytearray | None: ...
    def fence_queues(self, session: Session) -> None: ...
    def reset(self, session: Session) -> int: ...

class BufferHandle:
    def __init__(self, value: bytes) -> None: ...
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def size(self) -> int: ...
    def ptr(self) -> int: ...

def stored_name(key: bytes) -> bytes: ...
def store_code(code: int) -> int: ...
def allocate_memory(size: int) -> int: ...
def free_memory(address: int, size: int) -> bool: ...
def set_log_level(level: str) -> None: ...
def version() -> str: ...
