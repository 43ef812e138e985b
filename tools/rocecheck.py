#!/usr/bin/env python3
"""Checks the RoCEv2 packets in a pcap file: every one must have a right ICRC.

usage: rocecheck.py FILE [AT_LEAST [MTU]]

Prints how many packets there were by opcode, the most that one carried, and how many were refused by
their receiver. Exit code 1 where an ICRC is wrong, where there were fewer packets than AT_LEAST (1
unless given), or where the most that one carried is not MTU.
"""

import collections
import struct
import sys
import zlib

ROCE_PORT = 4791
ETHERNET_BYTES = 14
UDP_BYTES = 8
BTH_BYTES = 12
ICRC_BYTES = 4

OPCODES = {
    0x00: "SEND_FIRST", 0x01: "SEND_MIDDLE", 0x02: "SEND_LAST", 0x04: "SEND_ONLY",
    0x06: "WRITE_FIRST", 0x07: "WRITE_MIDDLE", 0x08: "WRITE_LAST", 0x0A: "WRITE_ONLY",
    0x0C: "READ_REQUEST", 0x0D: "READ_FIRST", 0x0E: "READ_MIDDLE", 0x0F: "READ_LAST",
    0x10: "READ_ONLY", 0x11: "ACK", 0x12: "ATOMIC_ACK", 0x13: "COMPARE_SWAP", 0x14: "FETCH_ADD",
    0x64: "UD_SEND_ONLY",
}
WITH_SYNDROME = (0x11, 0x12)
# Headers of READs' answers and of WRITEs, between the base header and what they carry.
HEADER_BYTES = {0x06: 16, 0x07: 0, 0x08: 0, 0x0A: 16, 0x0D: 4, 0x0E: 0, 0x0F: 4, 0x10: 4}


def frames(path):
    """The frames of a pcap file."""
    with open(path, "rb") as file:
        magic = file.read(24)[:4]
        order = "<" if magic in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
        while len(head := file.read(16)) == 16:
            captured, length = struct.unpack(order + "8xII", head)
            frame = file.read(captured)
            if captured == length == len(frame):  # one cut short proves nothing
                yield frame


def roce_packet(frame):
    """(IPv4 packet, offset of its base transport header), or None where it is another packet."""
    if frame[12:14] != b"\x08\x00":
        return None
    packet = frame[ETHERNET_BYTES:]
    header_bytes = (packet[0] & 15) * 4
    packet = packet[:struct.unpack(">H", packet[2:4])[0]]
    transport = header_bytes + UDP_BYTES
    if packet[9] != 17 or len(packet) < transport + BTH_BYTES + ICRC_BYTES:
        return None
    if struct.unpack(">H", packet[header_bytes + 2:header_bytes + 4])[0] != ROCE_PORT:
        return None
    return packet, transport


def icrc_is_right(packet, transport):
    """The ICRC covers all but itself; what changes on the way counts as ones."""
    covered = bytearray(packet[:-ICRC_BYTES])
    checksum = transport - UDP_BYTES + 6
    # Type of service, time to live, both checksums, and the transport header's reserved byte.
    for begin, end in ((1, 2), (8, 9), (10, 12), (checksum, checksum + 2), (transport + 4, transport + 5)):
        covered[begin:end] = b"\xff" * (end - begin)
    expected = zlib.crc32(b"\xff" * 8 + bytes(covered))
    return expected == struct.unpack("<I", packet[-ICRC_BYTES:])[0]


def main(path, at_least=1, mtu=None):
    opcodes = collections.Counter()
    refused = collections.Counter()
    wrong = 0
    most = 0
    for frame in frames(path):
        found = roce_packet(frame)
        if found is None:
            continue
        packet, transport = found
        opcode = packet[transport]
        opcodes[OPCODES.get(opcode, hex(opcode))] += 1
        if not icrc_is_right(packet, transport):
            wrong += 1
        if opcode in HEADER_BYTES:
            carried = len(packet) - transport - BTH_BYTES - HEADER_BYTES[opcode] - ICRC_BYTES
            most = max(most, carried)
        if opcode in WITH_SYNDROME and (kind := packet[transport + BTH_BYTES] >> 5):
            refused[{1: "receiver not ready", 3: "negative"}.get(kind, kind)] += 1
    total = sum(opcodes.values())
    print(f"{total} RoCEv2 packets, {wrong} with a wrong ICRC")
    print("by opcode:", ", ".join(f"{name} {count}" for name, count in opcodes.most_common()))
    print(f"the most that one carried: {most} bytes")
    print("refused:", ", ".join(f"{name} {count}" for name, count in refused.items()) or "none")
    if total < at_least:
        print(f"fewer than {at_least}")
    if mtu not in (None, most):
        print(f"not {mtu}")
    return 0 if wrong == 0 and total >= at_least and mtu in (None, most) else 1


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
