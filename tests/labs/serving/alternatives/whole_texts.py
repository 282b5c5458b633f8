"""Books kept otherwise: sets and clocks in place of lists, whole texts for keys, blocks counted one by one."""


class BlockManager:
    def __init__(self, count):
        self.references = [0] * count
        self.unused = set(range(count))

    @property
    def available(self):
        return sum(held == 0 for held in self.references)

    @property
    def used(self):
        return sum(held > 0 for held in self.references)

    def allocate(self):
        try:
            block = min(self.unused)
        except ValueError:
            raise ValueError("no block is left") from None
        self.unused.discard(block)
        self.references[block] += 1
        return block

    def share(self, block):
        self.references[block] = self.references[block] + 1
        self.unused.discard(block)

    def release(self, block):
        self.references[block] = self.references[block] - 1
        if not self.references[block]:
            self.unused.add(block)


class PageTables:
    def __init__(self, blocks, page):
        self.blocks, self.page, self.texts, self.started = blocks, page, {}, 0

    def start(self, tokens=()):
        self.started += 1
        self.texts[self.started] = ([], [])
        return self.started

    def length(self, number):
        return len(self.texts[number][1])

    def table(self, number):
        return tuple(self.texts[number][0])

    def pages(self, tokens):
        whole, rest = divmod(tokens, self.page)
        return whole + (rest > 0)

    def try_reserve(self, counts, spare=0):
        taken = []
        for number, count in counts.items():
            table, kept = self.texts[number]
            while len(table) * self.page < len(kept) + count and self.blocks.available:
                table.append(self.blocks.allocate())
                taken.append(table)
        full = all(len(self.texts[n][0]) * self.page >= len(self.texts[n][1]) + c for n, c in counts.items())
        if full and self.blocks.available >= spare:
            return True
        for table in reversed(taken):
            self.blocks.release(table.pop())
        return False

    def commit(self, new):
        for number, tokens in new.items():
            self.texts[number][1].extend(tokens)

    def drop(self, number):
        table, _ = self.texts.pop(number)
        while table:
            self.blocks.release(table.pop())


def keys(tokens, page):
    return [tuple(tokens[: page * (place + 1)]) for place in range(len(tokens) // page)]


class PrefixBlocks(BlockManager):
    def __init__(self, count):
        super().__init__(count)
        self.key_of, self.released, self.time = [None] * count, [0] * count, 0

    def allocate(self):
        blank = [block for block in self.unused if self.key_of[block] is None]
        if not self.unused:
            raise ValueError("no block is left")
        block = blank[-1] if blank else min(self.unused, key=self.released.__getitem__)
        self.key_of[block] = None
        self.unused.discard(block)
        self.references[block] = 1
        return block

    def release(self, block):
        self.time += 1
        self.released[block] = self.time
        super().release(block)

    def register(self, block, key):
        if self.find(key) is None and self.key_of[block] is None:
            self.key_of[block] = key

    def find(self, key):
        return self.key_of.index(key) if key in self.key_of else None


class PrefixTables(PageTables):
    def try_reserve(self, counts, spare=0):
        # To take blocks and give them back would make known ones unknown: count first.
        lacking = 0
        for number, count in counts.items():
            table, kept = self.texts[number]
            lacking += max(0, self.pages(len(kept) + count) - len(table))
        return lacking + spare <= self.blocks.available and super().try_reserve(counts)

    def start(self, tokens=()):
        number, tokens = super().start(), tuple(tokens)
        table, kept = self.texts[number]
        for end in range(self.page, len(tokens), self.page):
            block = self.blocks.find(tokens[:end])
            if block is None:
                return number
            self.blocks.share(block)
            table.append(block)
            kept.extend(tokens[end - self.page : end])
        return number

    def commit(self, new):
        for number, tokens in new.items():
            table, kept = self.texts[number]
            for token in tokens:
                kept.append(token)
                if len(kept) % self.page == 0:
                    self.blocks.register(table[len(kept) // self.page - 1], tuple(kept))
