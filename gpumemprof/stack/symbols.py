"""Names for places in code: from (code file, address) to frames."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import SHT_DYNSYM, SHT_SYMTAB, ElfFile
from gpumemprof.process.patience import NoAnswerError
from gpumemprof.stack.code_files import CodeFile, FileCache
from gpumemprof.stack.debug_files import has_symbol_table
from gpumemprof.stack.demangle import demangle
from gpumemprof.stack.frames import Frame
from gpumemprof.stack.image import ProcessImage
from gpumemprof.stack.symbol_index import Candidate, SymbolIndex, best

MAX_FRAMES = 32_768
"""Places whose frame is remembered."""
MAX_NAME = 1024
MAX_FULL_NAME = 8192
"""Characters of a name that are kept; names of real functions are shorter."""
MAX_INDEXES = 64
MAX_INDEX_BYTES = 32 << 20
"""Files whose symbol index is held, and its memory: 2 MB for one of libtorch's size."""


class Symbolizer:
    """Looks names up in the files of a FileCache. Not thread-safe."""

    def __init__(
        self, files: FileCache, *, full_names: bool = False, limit: int = MAX_FRAMES
    ) -> None:
        """``full_names``: keep arguments, return types and template arguments of C++ and Rust
        names. ``limit``: places remembered."""
        self._files = files
        self._full_names = full_names
        self._limit = limit
        self._known: OrderedDict[tuple[int, int], Frame] = OrderedDict()
        self._indexes: OrderedDict[int, list[SymbolIndex]] = OrderedDict()
        self._index_bytes = 0
        self._counts: Counter[str] = Counter()

    def frames(self, places: Sequence[tuple[int, int]]) -> list[Frame]:
        """The frame of each place (id of a code file, address in it), as ``ProcessImage.locate``
        gives them; id 0 is no code at all.

        A place without a symbol is named ``libfoo.so+0x1234`` (address as in the file).
        """
        missing: dict[int, set[int]] = {}
        known = self._known
        found: dict[tuple[int, int], Frame] = {}
        for place in places:
            frame = known.get(place)
            if frame is None:
                missing.setdefault(place[0], set()).add(place[1])
            else:
                known.move_to_end(place)
                found[place] = frame
        for number, addresses in missing.items():
            for address, frame in self._looked_up(number, addresses):
                found[number, address] = frame
        return [found[place] for place in places]

    def image_frames(self, image: ProcessImage, lookups: Iterable[int]) -> list[Frame]:
        """The frames of a process's addresses (``Unwound.lookups``)."""
        return self.frames([image.locate(address) or (0, address) for address in lookups])

    def counters(self) -> dict[str, int]:
        """What could not be named: places in code that are in no function of a symbol table, and
        in files that could not be read."""
        names = ("frames_without_symbol", "frames_without_file")
        return {name: self._counts[name] for name in names}

    def _looked_up(self, number: int, addresses: set[int]) -> list[tuple[int, Frame]]:
        file = self._files.get(number)
        if file is None:
            frame = Frame.note("not code" if number == 0 else "file no longer known")
            self._counts["frames_without_file"] += len(addresses)
            return [(address, frame) for address in addresses]
        if file.perf_map is not None:
            return self._run_time_code(file, addresses)
        results = []
        for address in addresses:
            frame = self._frame(file, address)
            self._remember((number, address), frame)
            results.append((address, frame))
        return results

    def _run_time_code(self, file: CodeFile, addresses: set[int]) -> list[tuple[int, Frame]]:
        """Not remembered unless named: a map grows, and code is replaced."""
        assert file.perf_map is not None
        perf_map = file.perf_map
        try:
            names = file.patience(lambda: perf_map.names(addresses))
        except NoAnswerError:
            names = {}
        results = []
        for address in addresses:
            if address in names:
                frame = Frame(self._named(names[address]))
                self._remember((file.id, address), frame)
            else:
                self._counts["frames_without_symbol"] += 1
                frame = Frame.note("code made at run time")
            results.append((address, frame))
        return results

    def _frame(self, file: CodeFile, address: int) -> Frame:
        candidates: list[Candidate] = []
        try:
            for index in self._index(file):
                candidates += self._candidates(file, index, address)
        except NoAnswerError as error:
            file.abandon(str(error))
        symbol = best(candidates)
        if symbol is None:
            self._counts["frames_without_symbol"] += 1
            return Frame(f"{file.name}+{address:#x}", module=file.path)
        return Frame(self._named(symbol.name.decode("utf-8", "replace")), module=file.path)

    def _named(self, symbol: str) -> str:
        # What is long is not remembered: 16,384 of them would be much.
        read = demangle if len(symbol) <= MAX_NAME else demangle.__wrapped__
        name = read(symbol, short=not self._full_names)
        most = MAX_FULL_NAME if self._full_names else MAX_NAME
        return name if len(name) <= most else f"{name[: most - 1]}…"

    def unnamed(self, places: Sequence[tuple[int, int]]) -> list[Frame]:
        """The frames of places without looking up symbols, as if there were none."""
        self._counts["frames_without_symbol"] += len(places)
        found = []
        for number, address in places:
            file = self._files.get(number)
            name = file.name if file is not None else ""
            found.append(Frame(f"{name}+{address:#x}", module=file.path if file else ""))
        return found

    def _candidates(self, file: CodeFile, index: SymbolIndex, address: int) -> list[Candidate]:
        try:
            return file.patience(lambda: index.find(address))
        except NoAnswerError:
            raise
        except RemoteDataError:
            self._counts["frames_without_file"] += 1
            return []

    def _index(self, file: CodeFile) -> list[SymbolIndex]:
        known = self._indexes.get(file.id)
        if known is not None:
            self._indexes.move_to_end(file.id)
            return known
        indexes, damaged = file.patience(lambda: _indexes_of(file))
        self._counts["frames_without_file"] += damaged
        self._indexes[file.id] = indexes
        self._index_bytes += _bytes_of(indexes)
        while len(self._indexes) > 1 and (
            len(self._indexes) > MAX_INDEXES or self._index_bytes > MAX_INDEX_BYTES
        ):
            self._index_bytes -= _bytes_of(self._indexes.popitem(last=False)[1])
        return indexes

    def _remember(self, place: tuple[int, int], frame: Frame) -> None:
        self._known[place] = frame
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


def _indexes_of(file: CodeFile) -> tuple[list[SymbolIndex], int]:
    """The indexes of a file's symbol tables, and how many tables are damaged."""
    indexes: list[SymbolIndex] = []
    damaged = 0
    for elf, kind in _tables(file):
        try:
            index = SymbolIndex(elf, kind)
        except RemoteDataError:
            damaged += 1
            continue
        if len(index):
            indexes.append(index)
    return indexes, damaged


def _bytes_of(indexes: list[SymbolIndex]) -> int:
    return sum(index.bytes_held for index in indexes)


def _tables(file: CodeFile) -> list[tuple[ElfFile, int]]:
    """The symbol tables to ask: ``.symtab`` holds all of ``.dynsym``, separate files may not."""
    if file.elf is None:
        return []
    if has_symbol_table(file.elf):
        return [(file.elf, SHT_SYMTAB)]
    return [(file.elf, SHT_DYNSYM), *((debug, SHT_SYMTAB) for debug in file.debug)]
