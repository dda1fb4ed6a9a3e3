"""TLS certificates for a private mesh: an authority, a certificate per agent and client, and checks of existing files."""

import datetime
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim
from kernelmesh.runtimes.membership import NAME

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise MissingExtra("TLS certificates", "zenoh") from error

__all__ = ["create_authority", "issue", "tls_problems", "valid_until"]

_Key = ec.EllipticCurvePrivateKey
_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def create_authority(folder: str | os.PathLike[str], *, days: float = 3652) -> Path:
    """Write `authority.pem` and `authority.key` to a folder, valid for ten years, and return the path of the first.

    Anyone with the key can issue certificates that all agents trust, so copy only the certificate to other hosts.
    """
    folder = Path(folder)
    _check_new("create_authority", folder, "authority")
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("kernelmesh authority")
    until = _now() + datetime.timedelta(days=days)
    builder = _builder(name, key, issuer=name, until=until, usages={"key_cert_sign", "crl_sign"})
    return _write(folder, "authority", builder, key, signer=key)[0]


def issue(
    folder: str | os.PathLike[str], name: str, hosts: Sequence[str] = ("localhost", "127.0.0.1"), *, days: float = 825
) -> tuple[Path, Path]:
    """Write `NAME.pem` and `NAME.key`, signed by the authority in the same folder, and return their paths.

    `hosts` lists the host names and IP addresses at which others reach this agent or client. By default, it is valid for the
    longest time that browsers and Apple's libraries accept.
    """
    folder = Path(folder)
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == "authority":
        rule = "be 1 to 64 letters, digits, dots, dashes or underscores and not 'authority'"
        raise InvalidArgument("issue", "name", rule, name)
    alternatives = [x509.DNSName(name), *(_host(host) for host in hosts if host != name)]
    _check_new("issue", folder, name)
    if not (folder / "authority.pem").is_file() or not (folder / "authority.key").is_file():
        rule = "contain authority.pem and authority.key"
        raise InvalidArgument("issue", "folder", rule, str(folder), remedy="create them with create_authority")
    authority = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    signer = load_pem_private_key((folder / "authority.key").read_bytes(), None)
    if not isinstance(signer, _Key):
        raise InvalidArgument("issue", "authority.key", "be an elliptic curve key", Verbatim(type(signer).__name__))
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(_now() + datetime.timedelta(days=days), authority.not_valid_after_utc)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(name), key, issuer=authority.subject, until=until, usages={"digital_signature"})
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _write(folder, name, builder, key, signer=signer)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: object) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]") if isinstance(host, str) else ""))
    except ValueError:
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise InvalidArgument("issue", "hosts", "be host names or IP addresses", host) from None
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, key: _Key, *, issuer: x509.Name, until: datetime.datetime, usages: set[str]
) -> x509.CertificateBuilder:
    """An unsigned certificate; with the usage "key_cert_sign", that of an authority."""
    public, authority = key.public_key(), "key_cert_sign" in usages
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(_now(), until) - datetime.timedelta(hours=1))  # the clocks of other hosts may be slow
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.KeyUsage(**{usage: usage in usages for usage in _USAGES}), critical=True)
    )


def _check_new(owner: str, folder: Path, name: str) -> None:
    """Refuse to overwrite keys: existing certificates would no longer match them."""
    for path in (folder / f"{name}.key", folder / f"{name}.pem"):
        if path.exists():
            remedy = f"remove {name}.pem and {name}.key to start over"
            raise InvalidArgument(owner, "the file", "not exist yet", str(path), remedy=remedy)


def _write(folder: Path, name: str, builder: x509.CertificateBuilder, key: _Key, *, signer: _Key) -> tuple[Path, Path]:
    certificate = builder.sign(signer, hashes.SHA256())
    folder.mkdir(parents=True, exist_ok=True)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for ending, data, mode in (("key", secret, 0o600), ("pem", certificate.public_bytes(Encoding.PEM), 0o644)):
        with os.fdopen(os.open(folder / f"{name}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    return folder / f"{name}.pem", folder / f"{name}.key"


def valid_until(path: Path) -> float:
    """The earliest expiry time of the certificates in a file, in seconds since 1970."""
    found = x509.load_pem_x509_certificates(path.read_bytes())
    return min(one.not_valid_after_utc.timestamp() for one in found)


def tls_problems(*, authority: Path, certificate: Path, key: Path, name: str | None) -> Iterator[InvalidArgument]:
    """Everything that would prevent an agent called `name` from authenticating with these files (None: any name).

    Each error names the file concerned as its argument, as in `Tls: authority must …`.
    """
    files: dict[str, Any] = {"authority": []}
    for argument, path, load, what in (
        ("authority", authority, x509.load_pem_x509_certificates, "one or more certificates"),
        ("certificate", certificate, x509.load_pem_x509_certificate, "a certificate"),
        ("key", key, lambda data: load_pem_private_key(data, None), "a private key without a password"),
    ):
        try:
            files[argument] = load(path.read_bytes())
        except OSError as error:
            yield _wrong(argument, "be a readable file", f"{str(path)!r} ({error.strerror})")
        except Exception:  # the library raises many kinds of errors for an invalid file
            yield _wrong(argument, f"contain {what} in PEM format", repr(str(path)))
    if "key" in files and os.name == "posix" and (mode := key.stat().st_mode & 0o777) & 0o077:
        yield _wrong("key", "be readable by its owner alone", f"{str(key)!r} with mode {mode:03o}", f"chmod 600 {key}")
    for one in files["authority"]:
        yield from _out_of_time("authority", one)
        if not _is_authority(one):
            found = f"that of {_common_name(one.subject)!r}, which may not"
            yield _wrong("authority", "be a certificate that may sign other certificates", found)
    leaf: x509.Certificate | None = files.get("certificate")
    if leaf is None:
        return
    yield from _out_of_time("certificate", leaf)
    if name is not None and (common := _common_name(leaf.subject)) != name:
        rule, remedy = f"be issued to the agent itself (common name {name!r})", "issue a certificate with the agent's name"
        yield _wrong("certificate", rule, repr(common), remedy)
    if files["authority"] and not any(_signed(leaf, one) for one in files["authority"]):
        found = f"one signed by {_common_name(leaf.issuer)!r} with another key"
        yield _wrong("certificate", f"be signed by the authority in {authority}", found)
    if "key" in files and files["key"].public_key() != leaf.public_key():
        yield _wrong("key", "be the key of the certificate", f"another one in {str(key)!r}")


def _wrong(argument: str, rule: str, found: str, remedy: str = "") -> InvalidArgument:
    return InvalidArgument("Tls", argument, rule, Verbatim(found), remedy=remedy)


def _out_of_time(argument: str, certificate: x509.Certificate) -> Iterator[InvalidArgument]:
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not since <= _now() <= until:
        found = f"one that is valid from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
        yield _wrong(argument, "be valid now", found, "issue a new certificate, or correct the clock")


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _common_name(name: x509.Name) -> str:
    return "".join(str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME)[:1])


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False
    return True
