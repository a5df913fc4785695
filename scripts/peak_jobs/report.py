"""A job like many: reads records, makes an index of them, keeps a summary, and frees the rest before it ends."""


def read_records():
    return [bytes([n % 251]) * 900 for n in range(60_000)]


def make_index(records):
    return {f"{record[0]}-{n}": (n, record[:40]) for n, record in enumerate(records)}


def summarize(index):
    return sum(n for n, _ in index.values())


def main():
    records = read_records()
    index = make_index(records)
    total = summarize(index)
    del records, index
    # What comes after the peak needs less.
    return total + sum(len(bytes(1000)) for _ in range(200_000))


if __name__ == "__main__":
    main()
