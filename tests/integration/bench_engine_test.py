#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvcove bench engine`, with servers that answer as engines do: tests/integration/bench_engine_test.py KVCOVE"""

import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

KVCOVE = ""
RECIPES = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "recipes"
TOKENS_PER_WORD = 2
REQUESTS = 2 * 2 + 4 * 4  # of small()


def small(**changes):
    """Return options of a small load: four agents and two others."""
    options = {
        **{"conversations": 6, "turns": 2, "concurrency": 3, "system_prompts": 2},
        **{"system_tokens": 20, "input_tokens": 40, "turn_tokens": 10, "output_tokens": 3},
        **{"agents_percent": 50, "tool_steps": 1, "tool_tokens": 8, "tool_output_tokens": 2},
        **changes,
    }
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


class Engine:
    """A server on a port of its own, with streamed answers, a list of models and metrics."""

    def __init__(self, context=0, first_s=0.0, token_s=0.0, metrics=True, counts=1, fail=None):
        self.context, self.first_s, self.token_s, self.metrics = context, first_s, token_s, metrics
        self.counts = counts  # times that metrics count a token
        # Of a request: "drop", "error", "400", "503", "slow", "hang" or nothing.
        self.fail = fail or (lambda number, body: "")
        self.lock = threading.Lock()
        self.bodies = []
        self.keys = []
        self.prompt_tokens = 0
        self.released = threading.Event()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                engine.get(self)

            def do_POST(self):
                try:
                    engine.post(self)
                except ConnectionError:
                    pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def whole(self, handler, status, text):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text.encode())

    def get(self, handler):
        if handler.path == "/v1/models":
            model = {"id": "m", "object": "model"}
            if self.context:
                model["max_model_len"] = self.context
            self.whole(handler, 200, json.dumps({"object": "list", "data": [model]}))
        elif handler.path == "/metrics" and self.metrics:
            with self.lock:
                n = self.prompt_tokens * self.counts
            by_source = "vllm:prompt_tokens_by_source_total"
            self.whole(
                handler,
                200,
                f'vllm:prompt_tokens_total{{engine="0"}} {n}.0\n'
                f'{by_source}{{engine="0",source="local_cache_hit"}} {n * 0.25}\n'
                f'{by_source}{{engine="0",source="external_kv_transfer"}} {n * 0.5}\n'
                f'vllm:kvcove_hit_memory_keys_total{{engine="0"}} {n * 3}\n'
                f'vllm:kvcove_hit_disk_keys_total{{engine="0"}} {n}\n',
            )
        else:
            self.whole(handler, 404, '{"detail":"Not Found"}')

    def post(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        chat = handler.path == "/v1/chat/completions"
        text = body["prompt"] if not chat else "".join(m["content"] for m in body["messages"])
        with self.lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.keys.append(handler.headers.get("Authorization"))
            self.prompt_tokens += len(text.split()) * TOKENS_PER_WORD
        fail = self.fail(number, body)
        if fail == "400":
            message = "This model's maximum context length is 9 tokens."
            return self.whole(handler, 400, json.dumps({"error": {"message": message}}))
        if fail == "503":
            return self.whole(handler, 503, json.dumps({"detail": "the engine is dead"}))
        if fail == "hang":
            self.released.wait(60)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

        def send(event):
            data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.flush()

        if chat:
            send({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(0.4 if fail == "slow" else self.first_s)
        for i in range(body["max_tokens"]):
            if i > 0:
                time.sleep(self.token_s)
            if fail == "drop" and i == 1:
                handler.close_connection = True
                handler.connection.shutdown(socket.SHUT_RDWR)
                return
            if fail == "error" and i == 1:
                send({"error": {"message": "out of blocks"}})
                break
            send({"choices": [{"delta": {"content": f" w{number}"}} if chat else {"text": f" w{number}"}]})
        usage = {"prompt_tokens": len(text.split()) * TOKENS_PER_WORD, "completion_tokens": body["max_tokens"]}
        send({"choices": [], "usage": usage})
        send("[DONE]")
        handler.wfile.write(b"0\r\n\r\n")


class BenchEngine(unittest.TestCase):
    def engine(self, **how):
        engine = Engine(**how)
        self.addCleanup(engine.close)
        return engine

    def bench(self, *arguments, **more):
        command = [KVCOVE, "bench", "engine", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)

    def figures(self, *arguments, status=0, **more):
        done = self.bench(*arguments, "--json", **more)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout)

    def refused(self, *arguments):
        done = self.bench(*arguments)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def asked(self, engine):
        """Bodies of the requests, without the two that look at the engine."""
        return engine.bodies[2:]

    def test_figures_are_those_of_the_engine(self):
        engine = self.engine(first_s=0.05, token_s=0.02)
        json_ = self.figures(engine.url, *small())
        self.assertEqual((json_["completed"], json_["lost"], json_["unfinished"]), (6, 0, 0))
        self.assertEqual(json_["model"], "m")
        self.assertEqual(json_["tokens_per_word"], TOKENS_PER_WORD)
        self.assertEqual(len(self.asked(engine)), REQUESTS)
        self.assertEqual(json_["e2e_ms"]["count"], REQUESTS)
        self.assertEqual(json_["ttft_first_ms"]["count"], 6)
        self.assertEqual(json_["ttft_later_ms"]["count"], REQUESTS - 6)
        self.assertGreaterEqual(json_["ttft_ms"]["p50"], 50)
        self.assertGreaterEqual(json_["e2e_ms"]["p50"], 50 + 20)  # two tokens, or three
        self.assertGreaterEqual(json_["e2e_ms"]["p99"], json_["e2e_ms"]["p50"])
        self.assertGreaterEqual(json_["seconds"], 4 * 0.07)  # an agent's requests
        self.assertEqual(json_["output_tokens"], 2 * 2 * 3 + 4 * 2 * (2 + 3))
        self.assertEqual(json_["short_answers"], 0)
        words = sum(len(body["prompt"].split()) for body in self.asked(engine))
        self.assertEqual(json_["prompt_tokens"], words * TOKENS_PER_WORD)
        hits = json_["hits"]
        self.assertEqual(hits["prompt_tokens"], words * TOKENS_PER_WORD)
        self.assertAlmostEqual(hits["ratio"], 0.75)
        self.assertAlmostEqual(hits["tiers"]["engine's cache"], 0.25)
        self.assertAlmostEqual(hits["tiers"]["pool, memory of this host"], 0.375)
        self.assertAlmostEqual(hits["tiers"]["pool, disk"], 0.125)
        self.assertEqual(json_["kvcove"]["hit_disk_keys"], words * TOKENS_PER_WORD)

    def test_text_has_the_same_figures(self):
        done = self.bench(self.engine().url, *small())
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("6 conversations of 2 turns, 3 at a time", "conversations completed", "first token (TTFT)"):
            self.assertIn(line, done.stdout)
        self.assertRegex(done.stdout, r"hit ratio +75\.00 %")
        self.assertRegex(done.stdout, r"pool, disk +12\.50 %")

    def test_requests_are_streamed_and_have_their_length(self):
        engine = self.engine()
        self.figures(engine.url, *small(), env={**os.environ, "OPENAI_API_KEY": "secret"})
        self.assertEqual(set(engine.keys), {"Bearer secret"})
        for body in self.asked(engine):
            self.assertTrue(body["stream"] and body["ignore_eos"])
            self.assertEqual(body["model"], "m")
            self.assertIn(body["max_tokens"], (2, 3))

    def test_a_conversation_is_a_prefix_that_grows(self):
        engine = self.engine()
        self.figures(engine.url, *small(concurrency=1))
        prompts = [body["prompt"] for body in self.asked(engine)]
        begins = [n for n in range(len(prompts)) if n == 0 or not prompts[n].startswith(prompts[n - 1])]
        self.assertEqual(len(begins), 6)
        for n, prompt in enumerate(prompts):
            if n not in begins:  # the engine's own answer, too
                self.assertTrue(prompt.startswith(prompts[n - 1] + f" w{n + 1}"), prompt)
        systems = {prompts[n].split("\n\n")[0] for n in begins}
        self.assertEqual(len(systems), 2)
        self.assertEqual({len(system.split()) for system in systems}, {20 // TOKENS_PER_WORD})

    def test_the_seed_repeats_a_load(self):
        firsts = []
        for seed in ("1", "1", "2"):
            engine = self.engine()
            self.figures(engine.url, *small(seed=seed))
            # Answers are the engine's, so later prompts differ.
            firsts.append({body["prompt"].split("Assistant:")[0] for body in self.asked(engine)})
        self.assertEqual(firsts[0], firsts[1])
        self.assertNotEqual(firsts[0], firsts[2])

    def test_chats_are_messages(self):
        engine = self.engine()
        json_ = self.figures(engine.url, *small(api="chat"))
        self.assertEqual(json_["completed"], 6)
        longest = max(self.asked(engine), key=lambda body: len(body["messages"]))["messages"]
        self.assertEqual([m["role"] for m in longest], ["system", *["user", "assistant"] * 3, "user"])

    def test_several_engines_share_the_conversations(self):
        engines = [self.engine() for _ in range(2)]
        json_ = self.figures(*(engine.url for engine in engines), *small(agents_percent=0))
        self.assertEqual(json_["completed"], 6)
        # Two bodies more of the one that is looked at.
        self.assertEqual([len(engine.bodies) for engine in engines], [2 + 6, 6])
        for engine in engines:
            first = {body["prompt"].split("Assistant:")[0] for body in engine.bodies if "\n\nUser" in body["prompt"]}
            self.assertEqual(len(first), 3, "all of a conversation")
        self.assertAlmostEqual(json_["hits"]["ratio"], 0.75)

    def test_route_request_takes_engines_in_turn(self):
        engines = [self.engine() for _ in range(2)]
        self.figures(*(e.url for e in engines), *small(route="request", concurrency=1))
        prompts = [[b["prompt"] for b in e.bodies if "\n\nUser" in b["prompt"]] for e in engines]
        self.assertEqual([len(p) for p in prompts], [REQUESTS // 2, REQUESTS // 2])
        self.assertTrue(prompts[1][0].startswith(prompts[0][0]), "one conversation on both")

    def test_the_slowest_of_few_requests_is_in_the_last_quantile(self):
        engine = self.engine(fail=lambda number, body: "slow" if number == 5 else "")
        json_ = self.figures(engine.url, *small())
        self.assertGreaterEqual(json_["ttft_ms"]["p99"], 400)

    def test_metrics_of_others_are_told_apart(self):
        done = self.bench(self.engine(counts=2).url, *small())
        self.assertEqual(done.returncode, 0)
        self.assertIn("The hit ratio is not that of this run: ", done.stderr)
        self.assertEqual(self.bench(self.engine().url, *small()).stderr, "")

    def test_an_engine_that_dies_loses_what_is_left(self):
        engine = self.engine(fail=lambda number, body: "503" if number >= 2 + 4 else "")
        json_ = self.figures(engine.url, *small(concurrency=1), status=1)
        self.assertEqual((json_["completed"], json_["lost"], json_["unfinished"]), (1, 5, 0))
        self.assertEqual(json_["e2e_ms"]["count"], 4)
        reason = f"unavailable: {engine.url}: /v1/completions answers 503: the engine is dead"
        self.assertEqual(json_["lost_because"], {reason: 5})

    def test_a_conversation_that_fails_is_lost_alone(self):
        for fail, reason in (("drop", "the connection ended"), ("error", "out of blocks")):
            engine = self.engine(fail=lambda number, body, fail=fail: fail if number == 5 else "")
            json_ = self.figures(engine.url, *small(), status=1)
            self.assertEqual((json_["completed"], json_["lost"], json_["unfinished"]), (5, 1, 0))
            self.assertIn(reason, next(iter(json_["lost_because"])))
        engine = self.engine(fail=lambda number, body: "drop" if number == 5 else "")
        done = self.bench(engine.url, *small())
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"lost +1\n")
        self.assertIn(f"lost 1: unavailable: {engine.url}: the connection ended", done.stdout)

    def test_a_slow_answer_is_lost(self):
        engine = self.engine(fail=lambda number, body: "hang" if number >= 2 else "")
        json_ = self.figures(engine.url, *small(conversations=1, timeout_s=3), status=1)
        self.assertEqual((json_["completed"], json_["lost"]), (0, 1))
        self.assertIn("no answer in time", next(iter(json_["lost_because"])))

    def test_an_interrupted_run_prints_what_it_has(self):
        engine = self.engine(fail=lambda number, body: "hang" if number >= 2 + 4 else "")
        process = subprocess.Popen(
            [KVCOVE, "bench", "engine", engine.url, *small(), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        try:
            while len(engine.bodies) < 2 + 4 + 3:  # all three wait
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        self.assertEqual(process.returncode, 130, err)
        json_ = json.loads(out)
        self.assertTrue(json_["interrupted"])
        self.assertEqual(json_["e2e_ms"]["count"], 4)
        self.assertEqual(json_["lost"], 0)
        self.assertEqual(json_["completed"] + json_["unfinished"], 6)
        self.assertGreaterEqual(json_["unfinished"], 3)

    def test_no_metrics_is_no_hit_ratio(self):
        done = self.bench(self.engine(metrics=False).url, *small(), "--json")
        self.assertEqual(done.returncode, 0)
        self.assertIsNone(json.loads(done.stdout)["hits"])
        self.assertIn("No hit ratio: ", done.stderr)

    def test_an_engine_that_does_not_answer_is_named(self):
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            error = self.refused(f"http://127.0.0.1:{nobody.getsockname()[1]}", *small())
        self.assertRegex(error, r"the engine 127\.0\.0\.1:\d+: Connection refused")
        self.assertIn("start the engine there", error)

    def test_another_model_is_named(self):
        error = self.refused(self.engine().url, *small(model="n"))
        self.assertIn("does not serve the model 'n'; it serves: m", error)

    def test_a_context_that_is_too_long_is_an_error(self):
        engine = self.engine(context=50)
        error = self.refused(engine.url, *small())
        self.assertIn("takes 50 (its max_model_len)", error)
        self.assertEqual(engine.bodies, [])
        # A server that does not say its limit refuses the request.
        engine = self.engine(fail=lambda number, body: "400" if number > 4 else "")
        self.assertIn("answers 400: This model's maximum context length is 9 tokens.", self.refused(engine.url, *small()))

    def test_no_such_interface_is_an_error(self):
        engine = self.engine()
        self.assertIn("is no list of models", self.refused(engine.url + "/other", *small()))

    def test_wrong_options_are_errors(self):
        url = self.engine().url
        for arguments, error in (
            ([url, "--turns", "0"], "turns is 0: it may be 1 to 1000"),
            ([url, "--api", "text"], "--api: text not in {completions,chat}"),
            ([url, "--load", "/tmp"], "--load: '/tmp' is no file"),
            ([url, "--load", "/nowhere.toml"], "--load: '/nowhere.toml' is no file"),
            (["https://h:1"], "speaks plain HTTP"),
            ([], "ENGINE is required"),
        ):
            self.assertIn(error, self.refused(*arguments))

    def test_a_file_is_a_load_and_options_change_it(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("conversations = 4\nturns = 3\nagents_percent = 0\noutput_tokens = 2\n")
            file.flush()
            json_ = self.figures(self.engine().url, "--load", file.name, "--turns", "1")
            self.assertEqual(json_["load"]["conversations"], 4)
            self.assertEqual(json_["e2e_ms"]["count"], 4)
            self.assertEqual(json_["output_tokens"], 8)
            file.write("turn = 3\n")
            file.flush()
            error = self.refused(self.engine().url, "--load", file.name)
            self.assertIn("'turn'; did you mean 'turns'?", error)

    def test_the_recipes_are_loads(self):
        recipes = sorted(RECIPES.glob("*.toml"))
        self.assertTrue(recipes)
        for recipe in recipes:
            few = ("--conversations", "2", "--turns", "1", "--output-tokens", "1", "--model", "m")
            self.assertEqual(self.figures(self.engine().url, "--load", str(recipe), *few)["completed"], 2)


if __name__ == "__main__":
    KVCOVE = sys.argv.pop(1)
    unittest.main()
