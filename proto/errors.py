"""One hierarchy of errors, each with the gRPC status a caller sees."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, NoReturn

import grpc
from grpc import aio

DEADLINE_SLACK_S = 0.05
"""A client whose deadline comes cancels a little before ours comes."""


class LBError(Exception):
    """Anything prefixlb refuses or fails to do; the message is for the caller."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retry_after_s: float | None = None
    """When the server says that it may be asked again."""

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later, or elsewhere."""
        return self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class InvalidRequest(LBError):
    """The request cannot be served as it is, now or later."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class InvalidModel(LBError):
    """The model's files are missing, broken or of a kind we cannot run; the start fails."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class InvalidFile(LBError):
    """A file that a process goes by, such as its certificate, is no good; the start fails."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class UnknownModel(LBError):
    """No replica serves that model."""

    code = grpc.StatusCode.NOT_FOUND


class UnknownReplica(LBError):
    """No replica of that name is in the fleet."""

    code = grpc.StatusCode.NOT_FOUND


class UnknownBranch(LBError):
    """No branch of a replica's mirror begins there, perhaps no longer."""

    code = grpc.StatusCode.NOT_FOUND


class Overloaded(LBError):
    """Admission is full; the client may retry after a pause."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class NotReady(LBError):
    """Allowed at another time only, such as a flush while requests run."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unavailable(LBError):
    """Nobody can serve it now; the client may retry."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(LBError):
    """The caller's deadline passed before the answer was complete."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class StalledReader(LBError):
    """The caller does not read its answer; the rest is given up."""

    code = grpc.StatusCode.ABORTED


class NotServed(LBError):
    """Whoever answers does not know the call: a server of another kind."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Unauthenticated(LBError):
    """The caller has to bring a token, or brought one that is not known."""

    code = grpc.StatusCode.UNAUTHENTICATED


class Forbidden(LBError):
    """The caller's token does not open what it asked for."""

    code = grpc.StatusCode.PERMISSION_DENIED


def error_from_status(code: grpc.StatusCode, details: str | None) -> LBError:
    """The error of this hierarchy that a server answered with."""
    known = (
        *(InvalidRequest, UnknownModel, Overloaded, NotReady),
        *(Unavailable, DeadlineExceeded, StalledReader, NotServed),
        *(Unauthenticated, Forbidden),
    )
    kinds: dict[grpc.StatusCode, type[LBError]] = {kind.code: kind for kind in known}
    return kinds.get(code, LBError)(details or code.name)


@contextmanager
def from_status() -> Iterator[None]:
    """At a caller's edge: a status inside becomes its LBError."""
    try:
        yield
    except grpc.RpcError as error:
        raised = error_from_status(error.code(), error.details())
        raised.retry_after_s = _retry_after_s(error.trailing_metadata())
        raise raised from error


def _retry_after_s(trailers: Any) -> float | None:
    """What a server said in seconds; anything else says nothing."""
    said = next((value for key, value in trailers or () if key == "retry-after"), "")
    return float(said) if isinstance(said, str) and said.isdecimal() else None


@asynccontextmanager
async def as_status(context: aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """At a servicer's edge: an LBError inside becomes its status."""
    try:
        yield
    except LBError as error:
        await abort(context, error.code, str(error))


def code_of_departure(context: aio.ServicerContext[Any, Any]) -> grpc.StatusCode:
    """How a call ends whose client has gone: by its deadline, or by its own will."""
    left_s = context.time_remaining()
    late = left_s is not None and left_s < DEADLINE_SLACK_S
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED


async def abort(
    context: aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    details: str,
    metadata: tuple[tuple[str, str | bytes], ...] = (),
) -> NoReturn:
    """End the call with a status, unless its client goes first: that is no failure of ours."""
    try:
        await context.abort(code, details, metadata)
    except aio.InternalError as error:
        raise asyncio.CancelledError from error
