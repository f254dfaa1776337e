"""The same methods across real sites, on Flower.

`server/` is the coordinator's app, `site/` a client's, `deploy/` the processes, keys and the port
between them.

May import: every room but api and cli.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.flower.deploy import processes
    from focoop.flower.deploy.control import ENDED, check
    from focoop.flower.deploy.enrolment import key_print
    from focoop.flower.deploy.join_bundle import CLASSES, JOIN, RUN, invitation_of, send_key, settle
    from focoop.flower.deploy.keys import add_sites, make_keys, make_site_key, renew_server
    from focoop.flower.deploy.serving import Served, serving
    from focoop.flower.deploy.study import (
        Federation,
        aside,
        create,
        host_port,
        invite_site,
        is_done,
        read,
    )
    from focoop.flower.deploy.supervise import keep
    from focoop.flower.identity import numbered, read_site
    from focoop.flower.journal import TROUBLE, Tail, committed, sentence
    from focoop.flower.server.journal_summary import LiveBoard
    from focoop.flower.server.status_page import status_page
    from focoop.flower.settings import listed, server_settings
    from focoop.flower.site.client import own_scenario
    from focoop.flower.site.dry_run import check_keys, check_state, try_one_step
    from focoop.flower.site.policy import Policy, Refusal, policy_file
    from focoop.flower.site.policy_words import policy_sentences
    from focoop.flower.site.privacy_summary import privacy_facts, privacy_sentences
    from focoop.flower.site.status import SiteWatch, read_status
    from focoop.flower.site.status_words import sentences

__all__ = [
    "CLASSES",
    "ENDED",
    "JOIN",
    "RUN",
    "TROUBLE",
    "Federation",
    "LiveBoard",
    "Policy",
    "Refusal",
    "Served",
    "SiteWatch",
    "Tail",
    "add_sites",
    "aside",
    "check",
    "check_keys",
    "check_state",
    "committed",
    "create",
    "host_port",
    "invitation_of",
    "invite_site",
    "is_done",
    "keep",
    "key_print",
    "listed",
    "make_keys",
    "make_site_key",
    "numbered",
    "own_scenario",
    "policy_file",
    "policy_sentences",
    "privacy_facts",
    "privacy_sentences",
    "processes",
    "read",
    "read_site",
    "read_status",
    "renew_server",
    "send_key",
    "sentence",
    "sentences",
    "server_settings",
    "serving",
    "settle",
    "status_page",
    "try_one_step",
]

__getattr__ = lazy_names(__name__, __file__)
