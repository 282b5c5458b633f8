"""Books kept otherwise: sets, a heap and a clock in place of lists, whole texts for keys, blocks taken one by one."""

import heapq


class BlockManager:
    def __init__(self, count):
        self.references = [0] * count
        self.unused = set(range(count))

    @property
    def available(self):
        return len(self.unused)

    @property
    def used(self):
        return len(self.references) - len(self.unused)

    def allocate(self):
        try:
            block = self.unused.pop()
        except KeyError:
            raise ValueError("no block is left") from None
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
        self.blank, self.key_of, self.place_of = set(self.unused), [None] * count, {}
        self.released, self.time, self.leaving = [0] * count, 0, []

    def allocate(self):
        if not self.unused:
            raise ValueError("no block is left")
        block = self.blank.pop() if self.blank else self.forget_oldest()
        self.unused.remove(block)
        self.references[block] = 1
        return block

    def forget_oldest(self):
        while True:
            time, block = heapq.heappop(self.leaving)
            if block in self.unused and self.released[block] == time:
                del self.place_of[self.key_of[block]]
                self.key_of[block] = None
                return block

    def release(self, block):
        super().release(block)
        if block not in self.unused:
            return
        if self.key_of[block] is None:
            self.blank.add(block)
        else:
            self.time += 1
            self.released[block] = self.time
            heapq.heappush(self.leaving, (self.time, block))

    def register(self, block, key):
        if self.find(key) is None and self.key_of[block] is None:
            self.key_of[block], self.place_of[key] = key, block

    def find(self, key):
        return self.place_of.get(key)


class PrefixTables(PageTables):
    def try_reserve(self, counts, spare=0):
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
