# Attack: unpacks 150 MB out of a few bytes
# Verdicts: memory_limit
# Reason: ^(Refused more than|Stopped above) 64 MB of memory
# Limits: cpu_s=5 wall_s=8 memory_mb=64
import zlib

packer = zlib.compressobj(1)
small = b"".join(packer.compress(bytes(2**20)) for _ in range(150)) + packer.flush()
zlib.decompress(small)
