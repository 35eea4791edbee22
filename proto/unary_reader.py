"""How a server takes the one message of a request: readable and in time, or not at all."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from proto.errors import DeadlineExceeded, InvalidRequest, LBError, abort

MESSAGE_TIMEOUT_S = 20.0
"""From the begin of a call to the end of its message; enough for the largest on a slow line."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Context = aio.ServicerContext[Any, Any]


class UnaryReader(aio.ServerInterceptor):
    """Answers what grpc.aio would wait for without end, or answer UNKNOWN and log as our error.

    On the wire one message is a stream of one, so each handler is offered as one of a stream, whose
    reading is then in our hands.
    """

    def __init__(
        self,
        *,
        refused: Callable[[str, grpc.StatusCode], None] | None = None,
        timeout_s: float = MESSAGE_TIMEOUT_S,
    ) -> None:
        """`refused` is told the method ("/package.Service/Method") and the code, to count them."""
        self._refused = refused
        self._timeout_s = timeout_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return cast(Handler, handler)
        method = handler_call_details.method

        async def one_answer(_: object, context: Context) -> Any:
            message = await self._read(handler, method, context)
            return await handler.unary_unary(message, context)

        async def answers(_: object, context: Context) -> None:
            message = await self._read(handler, method, context)
            answer = handler.unary_stream(message, context)
            if inspect.isawaitable(answer):
                await answer
                return
            async with aclosing(answer):
                async for part in answer:
                    await context.write(part)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                answers, response_serializer=handler.response_serializer
            )
        return grpc.stream_unary_rpc_method_handler(
            one_answer, response_serializer=handler.response_serializer
        )

    async def _read(self, handler: Any, method: str, context: Context) -> Any:
        """The message; otherwise the call ends here."""
        try:
            return handler.request_deserializer(await self._received(context))
        except DecodeError:
            error: LBError = InvalidRequest(f"what came is no request message of {method}")
        except LBError as refusal:
            error = refusal
        if self._refused is not None:
            self._refused(method, error.code)
        await abort(context, error.code, str(error))

    async def _received(self, context: Context) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                wire: Any = await context.read()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the call brought no request message within {self._timeout_s:g} s"
            ) from error
        if wire is aio.EOF:
            raise InvalidRequest("the call ended without a request message")
        return bytes(wire)
