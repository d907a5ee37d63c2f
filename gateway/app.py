"""The ASGI application: entrance, router, handlers."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import admin, listings, tokens
from gateway.access import Access
from gateway.admin import Admin
from gateway.cluster import Cluster
from gateway.computing import Computing
from gateway.dashboard import page
from gateway.dashboard.page import Page
from gateway.dialects.anthropic_answer import Messages
from gateway.dialects.base import Dialect
from gateway.dialects.computed import Computed
from gateway.dialects.ollama import parse_chat, parse_generate
from gateway.dialects.ollama_answer import Ollama
from gateway.dialects.ollama_embeddings import OllamaEmbed, OllamaEmbedding
from gateway.dialects.openai_chat_answer import ChatCompletions
from gateway.dialects.openai_completions import Completions
from gateway.dialects.openai_embeddings import Embeddings
from gateway.dialects.openai_responses_answer import Responses
from gateway.dialects.ranking import Pairs, Rerank
from gateway.endpoint import Desk
from gateway.generation import Generation
from gateway.listings import Listings
from gateway.middleware import Entrance
from gateway.routes import Pages, routes
from protocol.config import ClusterConfig
from protocol.errors import ClusterError, ErrorCode


def make_app(
    cluster: Cluster,
    config: ClusterConfig,
    desk: Desk,
    actions: Admin,
    access: Access,
    connections: Callable[[], int],
) -> ASGIApp:
    """`desk.limits` are those that hold here, `connections` tells how many are open at the moment."""
    paths = client_paths(cluster, config, desk) + admin.routes(actions) + page.routes(Page())
    router = Router(paths, redirect_slashes=False, default=_unknown_url)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # makes the router raise for a wrong method rather than answer in plain text
        await router(scope, receive, send)

    return Entrance(app, lambda: connections() <= desk.limits.max_connections, access)


def client_paths(cluster: Cluster, config: ClusterConfig, desk: Desk) -> list[Route]:
    """All but the operator's; `gateway.surface` describes them."""
    responses = Responses()
    dialects: dict[str, Dialect] = {
        "/chat/completions": ChatCompletions(),
        "/completions": Completions(),
        "/responses": responses,
        "/messages": Messages(drop_billing_line=config.anthropic.drop_billing_line),
    }
    others: dict[str, Dialect] = {
        "/api/chat": Ollama(parse_chat),
        "/api/generate": Ollama(parse_generate),
        "/api/v0/chat/completions": ChatCompletions(),
        "/api/v0/completions": Completions(),
    }

    computed: dict[str, Computed] = {
        "/embeddings": Embeddings(),
        "/api/v0/embeddings": Embeddings(),
        "/api/embed": OllamaEmbed(),
        "/api/embeddings": OllamaEmbedding(),
        "/rerank": Rerank(shows=True),
        "/v2/rerank": Rerank(shows=False),
        "/score": Pairs(),
    }

    def endpoints(spoken: dict[str, Dialect]) -> dict[str, Generation]:
        return {path: Generation(dialect, cluster, desk) for path, dialect in spoken.items()}

    paths = routes(Pages(cluster, desk.metrics, responses.store), endpoints(dialects))
    paths += [
        Route(path, Computing(dialect, cluster, desk), methods=["POST"]) for path, dialect in computed.items()
    ]
    paths += listings.routes(Listings(cluster, desk.intake), endpoints(others))
    return paths + tokens.routes(cluster, desk, drop_billing_line=config.anthropic.drop_billing_line)


async def _unknown_url(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["raw_path"].decode("latin-1")[:200]  # as the client wrote it
    raise ClusterError(ErrorCode.UNKNOWN_URL, f"there is nothing at {scope['method']} {path}")
