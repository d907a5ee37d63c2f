"""What may be wrong with a home: its configuration, its files, its models. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from clusterctl.diagnosis import Check, Fix, Found, Level
from clusterctl.facts import Facts

_SOON = timedelta(days=14)


def _config(facts: Facts) -> Iterator[Found]:
    home = facts.home
    if home.config_error:
        yield Found(
            home.config_error, f"correct {home.config_file}; a first one is written by: clusterctl init"
        )


def _folder_modes(facts: Facts) -> Iterator[Found]:
    return _modes(facts, folders=True)


def _file_modes(facts: Facts) -> Iterator[Found]:
    return _modes(facts, folders=False)


def _modes(facts: Facts, *, folders: bool) -> Iterator[Found]:
    for place in facts.home.places:
        if place.is_folder != folders:
            continue
        mode = "700" if folders else "600"
        if not place.ours:
            yield Found(
                f"{place.path} belongs to another user than the one who runs this",
                f"run clusterctl as that user, or give it to this one: sudo chown $(id -u) {place.path}",
            )
        elif place.mode & 0o077:
            command = ("chmod", mode, str(place.path))
            yield Found(
                f"{place.path} is open to other users (mode {place.mode:04o}), who could read or replace"
                " what is in it",
                f"run: {' '.join(command)}",
                Fix(f"{place.path} is for its owner alone", command),
            )


def _certificate_pairs(facts: Facts) -> Iterator[Found]:
    for certificate in facts.home.certificates:
        if certificate.fault:
            yield Found(f"gateway {certificate.gateway}: {certificate.fault}", _RENEWED)


def _certificate_dates(facts: Facts) -> Iterator[Found]:
    for certificate in facts.home.certificates:
        if certificate.expires is None or certificate.expires - facts.now > _SOON:
            continue
        verb = "is over since" if certificate.expires <= facts.now else "is over on"
        yield Found(
            f"gateway {certificate.gateway}: the certificate {certificate.cert} {verb}"
            f" {certificate.expires:%Y-%m-%d %H:%M} UTC; clients refuse it from then on",
            _RENEWED,
        )


_RENEWED = "write the new certificate and its key over the old ones; a gateway takes them by itself"


def _models_missing(facts: Facts) -> Iterator[Found]:
    for model in facts.home.model_places:
        if model.missing:
            yield Found(f"worker {model.worker}: {model.missing}", f"correct its `model` in {_file(facts)}")


def _models_damaged(facts: Facts) -> Iterator[Found]:
    for model in facts.home.model_places:
        if model.damaged:
            yield Found(
                f"worker {model.worker}: {model.damaged}",
                f"copy the whole model to {model.path} again, then: clusterctl restart {model.worker}",
            )


def _file(facts: Facts) -> str:
    return str(facts.home.config_file)


def _leftovers(facts: Facts) -> Iterator[Found]:
    for process_id in facts.home.leftovers:
        yield Found(
            f"{process_id} has ended and left its lock, socket or pid file in the run folder; it was killed",
            "nothing has to be done, `clusterctl up` removes them; or: clusterctl doctor --fix",
            Fix(f"what {process_id} left behind is removed", sweep=process_id),
        )


CHECKS = (
    Check("config.invalid", Level.ERROR, "cluster.toml is missing, or is wrong", _config),
    Check("home.open", Level.ERROR, "folders of the home that others may enter", _folder_modes, fixes=True),
    Check("keys.open", Level.ERROR, "files of keys that others may read", _file_modes, fixes=True),
    Check(
        "tls.pair",
        Level.ERROR,
        "a certificate that is missing, damaged, or not of its key",
        _certificate_pairs,
    ),
    Check("tls.expiry", Level.ERROR, "a certificate that is over within 14 days", _certificate_dates),
    Check(
        "model.missing", Level.ERROR, "model folders that are not there, or hold no weights", _models_missing
    ),
    Check("model.damaged", Level.ERROR, "weight files that are cut short or missing", _models_damaged),
    Check(
        "run.leftovers",
        Level.NOTE,
        "locks, sockets and pid files of killed processes",
        _leftovers,
        fixes=True,
    ),
)
