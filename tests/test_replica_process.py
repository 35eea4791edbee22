"""A replica as its operator meets it: a process with flags, signals, logs and a metrics page."""

import re
import shutil
import signal
import time
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto.prefixlb.v1.inference_pb2 import GenerateRequest, SamplingParams, TokenPrompt
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from tests.replica_process import ReplicaProcess, run_replica
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(directory)
    return directory


def tokens_request(max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        tokens=TokenPrompt(ids=[5, 6, 7]),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )


def health(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(channel).Check(request).status)


def test_it_serves_until_a_signal_and_lets_what_runs_finish(model_dir: Path) -> None:
    replica = ReplicaProcess(model_dir)
    try:
        with replica.channel() as channel:
            serving = health_pb2.HealthCheckResponse.SERVING
            assert health(channel) == serving
            assert health(channel, "prefixlb.v1.Inference") == serving
            stub = InferenceStub(channel)
            call = stub.Generate(tokens_request(600))
            received = list(next(call).token_ids)
            replica.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 10
            while health(channel) == serving and time.monotonic() < deadline:
                time.sleep(0.01)
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Generate(tokens_request(1)))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            for part in call:
                received += part.token_ids
            assert len(received) == 600
    finally:
        code = replica.finish()
    assert code == 0
    log = "".join(replica.lines)
    assert "replica listens" in log
    assert "drained=True" in log
    assert "Traceback" not in log


REPORT_OBJECTS = """
import atexit, gc, sys
from replica.__main__ import main
atexit.register(lambda: print("collectable", len(gc.get_objects()), file=sys.stderr))
sys.exit(main())
"""


def test_a_full_garbage_collection_leaves_alone_what_was_there_at_the_start(
    model_dir: Path,
) -> None:
    replica = ReplicaProcess(model_dir, program=("-c", REPORT_OBJECTS))
    try:
        with replica.channel():
            replica.process.send_signal(signal.SIGTERM)
    finally:
        code = replica.finish()
    assert code == 0
    found = re.search(r"collectable (\d+)", "".join(replica.lines))
    assert found
    assert int(found[1]) < 50_000  # torch alone has some 200,000


REPORT_HEAPS = """
import atexit, ctypes, sys
from replica.__main__ import main
libc = ctypes.CDLL(None)
atexit.register(lambda: libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stderr")))
sys.exit(main())
"""


def test_what_one_thread_gives_back_all_others_can_use(model_dir: Path) -> None:
    replica = ReplicaProcess(model_dir, program=("-c", REPORT_HEAPS))
    try:
        with replica.channel() as channel:
            list(InferenceStub(channel).Generate(tokens_request(4)))
            replica.process.send_signal(signal.SIGTERM)
    finally:
        code = replica.finish()
    assert code == 0
    assert "".join(replica.lines).count("<heap nr=") == 1


def test_a_second_signal_ends_it_at_once(model_dir: Path) -> None:
    replica = ReplicaProcess(model_dir, "--slots", "100000")
    try:
        with replica.channel() as channel:
            call = InferenceStub(channel).Generate(tokens_request(2000))
            next(call)
            replica.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            replica.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert replica.process.wait(10) == 0
    finally:
        replica.finish()
    assert "Traceback" not in "".join(replica.lines)


def test_it_works_without_redis_and_its_metrics_page_shows_the_work(model_dir: Path) -> None:
    replica = ReplicaProcess(model_dir)
    try:
        with replica.channel() as channel:
            for _ in range(2):
                list(InferenceStub(channel).Generate(tokens_request(4)))
            url = f"http://127.0.0.1:{replica.metrics_port}/metrics"
            page = urllib.request.urlopen(url, timeout=10).read().decode()
    finally:
        replica.process.terminate()
        assert replica.finish() == 0
    values = dict(re.findall(r"^(prefixlb_replica_\S+) (\S+)$", page, re.MULTILINE))
    assert "_created" not in page
    label = '{model="tiny"}'
    assert float(values[f"prefixlb_replica_prompt_tokens_total{label}"]) == 6
    assert float(values[f"prefixlb_replica_cached_tokens_total{label}"]) == 2
    assert float(values[f"prefixlb_replica_prefilled_tokens_total{label}"]) == 4
    assert float(values[f"prefixlb_replica_generated_tokens_total{label}"]) == 8
    assert float(values[f"prefixlb_replica_time_to_first_token_seconds_count{label}"]) == 2
    assert float(values[f"prefixlb_replica_inter_token_seconds_count{label}"]) == 6
    assert float(values['prefixlb_replica_requests_total{code="OK",model="tiny"}']) == 2
    assert float(values['prefixlb_replica_slots{model="tiny",state="evictable"}']) == 6


def test_a_bad_setting_and_a_missing_or_broken_model_stop_the_start(
    model_dir: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    (broken / "config.json").write_text('{"architectures": 5}')
    for flags, complaint in (
        (("--model", "x", "--slots", "0"), "--slots: Input should be greater"),
        (("--model", "/nowhere/x.gguf"), "no model at /nowhere/x.gguf"),
        (("--model", str(broken)), "config.json: architectures is 5, expected a list"),
    ):
        ended = run_replica(*flags)
        assert ended.returncode == 2
        *said, told = ended.stderr.splitlines()
        assert told.startswith("prefixlb replica: ")
        assert complaint in told
        assert all("loading the model" in line for line in said)


def test_a_port_in_use_stops_the_start(model_dir: Path) -> None:
    replica = ReplicaProcess(model_dir)
    try:
        with replica.channel():
            flags = ("--model", str(model_dir), "--metrics-port", "0", "--slots", "100")
            ended = run_replica(*flags, "--port", str(replica.port))
    finally:
        replica.process.terminate()
        replica.finish()
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{replica.port}" in ended.stderr
    assert "Traceback" not in ended.stderr
