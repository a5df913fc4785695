# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A batch job whose memory is highest in the middle: it reads, builds a report that it frees, and keeps the sums.


def read():
    return [bytes(1000) for _ in range(5000)]


def build_report(rows):
    report = bytearray(40_000_000)  # the peak
    report[: len(rows)] = bytes(len(rows))
    return sum(report)


rows = read()
print(build_report(rows), len(rows), flush=True)
