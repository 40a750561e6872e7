"""Sealing: whoever owns the bucket can neither read, forge, swap nor replay what is in it.

A sealed blob is `MRG1`, one byte with the length of the key's ID, that ID, 12 bytes of nonce, and the AES-256-GCM
ciphertext of the zstd-compressed bytes. The key is derived per tenant by HKDF-SHA256 from one of VAULT_KEYS; tenant,
name, kind, generation and key ID are the associated data.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
import threading
from dataclasses import dataclass
from functools import lru_cache

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

MAGIC = b"MRG1"
NONCE_BYTES = 12
LEVEL = 3
"""zstd's own default: dumps shrink 4 to 200 times, at hundreds of MB a second."""


class Unsealable(Exception):
    """The bytes are not what was sealed under this context; `reason` is for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Context:
    """What a blob is. Sealed under one context, it opens under no other."""

    tenant: int
    name: bytes
    kind: str
    generation: int

    def associated(self, key_id: str) -> bytes:
        """An encoding in which no two contexts are alike."""
        kind, key = self.kind.encode(), key_id.encode()
        head = struct.pack("!qqHHH", self.tenant, self.generation, len(self.name), len(kind), len(key))
        return head + self.name + kind + key


@lru_cache(maxsize=1024)
def _cipher(master: bytes, tenant: int) -> AESGCM:
    derived = HKDF(SHA256(), 32, salt=None, info=b"moorage vault tenant %d" % tenant).derive(master)
    return AESGCM(derived)


_local = threading.local()


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=LEVEL)
    compressor: zstandard.ZstdCompressor = _local.compressor
    return compressor


def newest_key_id() -> str:
    """The ID of the key that seals."""
    return next(iter(settings.VAULT_KEYS))


def seal(data: bytes, context: Context) -> bytes:
    """Compress and seal `data` under `context`, with the newest key."""
    key_id = newest_key_id()
    nonce = secrets.token_bytes(NONCE_BYTES)
    sealed = _cipher(settings.VAULT_KEYS[key_id], context.tenant).encrypt(
        nonce, _compressor().compress(data), context.associated(key_id)
    )
    named = key_id.encode()
    return b"".join((MAGIC, bytes((len(named),)), named, nonce, sealed))


def key_id_of(sealed: bytes) -> str:
    """The ID of the key that sealed this. Raises Unsealable."""
    if sealed[: len(MAGIC)] != MAGIC or len(sealed) < len(MAGIC) + 1:
        raise Unsealable("it does not begin as a sealed blob does")
    length = sealed[len(MAGIC)]
    named = sealed[len(MAGIC) + 1 : len(MAGIC) + 1 + length]
    try:
        return named.decode("ascii")
    except UnicodeDecodeError:
        raise Unsealable("it names no key") from None


def unseal(sealed: bytes, context: Context, *, size: int, sha256: bytes) -> bytes:
    """The bytes that were sealed under `context`, which must have `size` bytes and that digest. Raises Unsealable."""
    key_id = key_id_of(sealed)
    master = settings.VAULT_KEYS.get(key_id)
    if master is None:
        raise Unsealable(f"it was sealed with the key {key_id!a}, which is not in VAULT_KEYS")
    at = len(MAGIC) + 1 + len(key_id)
    nonce, ciphertext = sealed[at : at + NONCE_BYTES], sealed[at + NONCE_BYTES :]
    try:
        packed = _cipher(master, context.tenant).decrypt(nonce, ciphertext, context.associated(key_id))
    except (InvalidTag, ValueError):
        raise Unsealable("it was changed, cut short, or belongs to another record, project or generation") from None
    data = _unpack(packed, size)
    if hashlib.sha256(data).digest() != sha256:
        raise Unsealable("its digest is not the one in the row")
    return data


def _unpack(packed: bytes, size: int) -> bytes:
    try:
        declared = zstandard.frame_content_size(packed)
        if declared != size:
            raise Unsealable(f"it unpacks to {declared} bytes, and the row says {size}")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise Unsealable(f"it does not unpack: {error}") from None
