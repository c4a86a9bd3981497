"""A switch that hands each frame on after a delay: slow_switch.py MILLISECONDS INTERFACE...

Frames keep the header in which the kernel says what it has left to do for them (their checksum, and
cutting them to size), for it is the kernel that takes them back.
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR = 263, 15
LARGEST_BYTES = 1 << 17


def open_port(interface):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.bind((interface, 0))
    port.setblocking(False)
    return port


def serve(delay, ports):
    waiting = collections.deque()  # (when, from where, frame)
    while True:
        patience = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for port in select.select(ports, [], [], patience)[0]:
            frame, source = port.recvfrom(LARGEST_BYTES)
            if source[2] != socket.PACKET_OUTGOING:  # what was sent from here
                waiting.append((time.monotonic() + delay, port, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, origin, frame = waiting.popleft()
            for port in ports:
                if port is not origin:
                    try:
                        port.send(frame)
                    except OSError:  # the cable is out: the frame is lost
                        pass


serve(float(sys.argv[1]) / 1000, [open_port(name) for name in sys.argv[2:]])
