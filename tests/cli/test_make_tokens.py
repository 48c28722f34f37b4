"""scripts/make_tokens: documents in, token files out that this program and Megatron's format agree on."""

import gzip
import json
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
from harness.program import REPOSITORY
from harness.tiny_models import write_model_config
from harness.workspace import GLOBAL_BATCH, SEQUENCE_LENGTH

tokenizers = pytest.importorskip("tokenizers")

WORDS = "the quick brown fox jumps over lazy dog Grüße naïve 漢字 model trains every parameter of mixture experts".split()
END = "<|end|>"


def sentences(seed, count):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 60))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A byte-level BPE tokenizer with 300 ids, as most models have, in a folder as models have it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(sentences(0, 200), tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=[END, "<|begin|>"], initial_alphabet=alphabet, show_progress=False))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": END}}))
    return folder


def make(folder, tokenizer, *arguments, code=0):
    command = [sys.executable, REPOSITORY / "scripts/make_tokens", "--tokenizer", tokenizer, "--out", "out/corpus", *arguments]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def read_index(prefix):
    """The index as Megatron-LM reads it: dtype, lengths, pointers, documents."""
    data = prefix.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack("<QBQQ", data[9:34])
    assert version == 1
    dtype = {8: np.uint16, 4: np.int32}[code]
    lengths = np.frombuffer(data, np.int32, sequences, 34)
    pointers = np.frombuffer(data, np.int64, sequences, 34 + 4 * sequences)
    entries = np.frombuffer(data, np.int64, documents, 34 + 12 * sequences)
    assert len(data) == 34 + 12 * sequences + 8 * documents
    return dtype, lengths, pointers, entries


def read_documents(prefix):
    dtype, lengths, pointers, entries = read_index(prefix)
    tokens = np.fromfile(prefix.with_suffix(".bin"), dtype)
    sequences = [tokens[at // dtype().itemsize:][:length] for at, length in zip(pointers, lengths, strict=True)]
    return [np.concatenate(sequences[first:last]).tolist() for first, last in zip(entries, entries[1:], strict=False)]


def read_mask(prefix):
    data = prefix.with_suffix(".mask").read_bytes()
    magic, version, tokens = struct.unpack("<8sQQ", data[:24])
    assert (magic, version, len(data)) == (b"OOMMASK\x00", 1, 24 + (tokens + 7) // 8)
    return np.unpackbits(np.frombuffer(data[24:], np.uint8), bitorder="little")[:tokens].astype(bool)


def outputs(folder):
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


def test_round_trip(tmp_path, tokenizer):
    """Documents come back as they were, each with its end."""
    texts = sentences(1, 100)
    write_lines(tmp_path / "corpus.jsonl", [{"text": text, "other": 3} for text in texts])
    done = make(tmp_path, tokenizer, "corpus.jsonl")
    assert "100 documents" in done.stdout and "read back and right" in done.stdout and "100 %" in done.stderr
    made = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    found = read_documents(tmp_path / "out/corpus")
    end = made.token_to_id(END)
    assert [tokens[-1] for tokens in found] == [end] * len(texts)
    assert [made.decode(tokens[:-1]) for tokens in found] == texts
    assert read_index(tmp_path / "out/corpus")[0] is np.uint16
    assert sorted(outputs(tmp_path)) == ["corpus.bin", "corpus.idx"]


def test_workers_change_nothing(tmp_path, tokenizer, monkeypatch):
    write_lines(tmp_path / "corpus.jsonl", [{"prompt": text, "completion": " " + text} for text in sentences(2, 2000)])
    keys = ("--prompt-key", "prompt", "--completion-key", "completion")
    make(tmp_path, tokenizer, "corpus.jsonl", *keys)
    alone = outputs(tmp_path)
    make(tmp_path, tokenizer, "corpus.jsonl", *keys, "--workers", 2, "--overwrite")
    assert outputs(tmp_path) == alone


def test_folders_gzip_and_text(tmp_path, tokenizer):
    """A text file is a document, a folder is read by path, hidden files are passed over."""
    (tmp_path / "in/b").mkdir(parents=True)
    (tmp_path / "in/a.txt").write_text("first\ndocument\n")
    (tmp_path / "in/b/c.jsonl.gz").write_bytes(gzip.compress(b'{"body": "second"}\n\n{"body": ""}\n{"body": "third"}\n'))
    (tmp_path / "in/.hidden").write_text("no")
    (tmp_path / "in/z.md").write_bytes(gzip.compress(b"")[:0])
    make(tmp_path, tokenizer, "in", "--key", "body", "--begin-of-document", "<|begin|>", "--end-of-document", "none")
    made = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    found = read_documents(tmp_path / "out/corpus")
    assert [made.decode(tokens) for tokens in found] == ["first\ndocument\n", "second", "third"]
    assert {tokens[0] for tokens in found} == {made.token_to_id("<|begin|>")}


def test_a_long_document_comes_in_sequences_of_one_document(tmp_path, tokenizer):
    text = "\n".join(sentences(3, 12000))
    assert len(text) > 2 << 20
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    write_lines(tmp_path / "long.jsonl", [{"text": text}])
    make(tmp_path, tokenizer, "long.txt", "long.jsonl")
    _, lengths, _, entries = read_index(tmp_path / "out/corpus")
    assert len(lengths) > 4 and len(entries) == 3
    made = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert [made.decode(tokens[:-1]) for tokens in read_documents(tmp_path / "out/corpus")] == [text, text]


def test_masked_prompts(tmp_path, tokenizer):
    """A token counts when it holds a character that is trained; the end counts with the last part."""
    records = [{"turns": [{"text": "the quick brown", "train": False}, {"text": " fox jumps", "train": True}, {"text": " over the lazy dog", "train": False}]},
               {"turns": [{"text": "漢字", "train": False}, {"text": " Grüße", "train": True}]}]
    write_lines(tmp_path / "chats.jsonl", records)
    assert "targets:" in make(tmp_path, tokenizer, "chats.jsonl", "--segments-key", "turns").stdout
    made = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    tokens, mask = sum(read_documents(tmp_path / "out/corpus"), []), read_mask(tmp_path / "out/corpus")
    assert len(tokens) == len(mask)
    assert made.decode([token for token, counts in zip(tokens, mask, strict=True) if counts], skip_special_tokens=False) == f" fox jumps Grüße{END}"
    assert made.decode([token for token, counts in zip(tokens, mask, strict=True) if not counts], skip_special_tokens=False) == f"the quick brown over the lazy dog{END}漢字"


def test_vocabulary_decides_the_type(tmp_path):
    for size, dtype in ((1 << 16, np.uint16), ((1 << 16) + 1, np.int32)):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.save(str(tmp_path / "words.json"))
        (tmp_path / "text.txt").write_text(f"w1 w{size - 1}")
        make(tmp_path, tmp_path / "words.json", "text.txt", "--end-of-document", "none", "--overwrite")
        assert read_index(tmp_path / "out/corpus")[0] is dtype
        assert read_documents(tmp_path / "out/corpus") == [[1, size - 1]]


@pytest.mark.parametrize("name, data, words", [
    ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n', ["a.jsonl:2", "text", "3"]),
    ("a.jsonl", b'{"text": "x"}\n{"body": "y", "id": 1}\n', ["a.jsonl:2", "'text' is missing", "body, id", "--key"]),
    ("a.jsonl", b'{"text": "x"\n', ["a.jsonl:1", "not valid JSON"]),
    ("a.jsonl", b'[1, 2]\n', ["a.jsonl:1", "object", "list"]),
    ("a.jsonl", b'{"text": "\xff"}\n', ["a.jsonl:1", "UTF-8"]),
    ("a.jsonl", b'{"text": "\\ud800"}\n', ["a.jsonl:1", "surrogate", "d800"]),
    ("a.jsonl", b"\n", ["no text"]),
    ("a.txt", b"ab\xffcd", ["a.txt", "byte 2"]),
    ("a.txt", b"ab\xe6\xbc", ["a.txt", "byte 2"]),
    ("a.txt", b"", ["no text"]),
    ("a.jsonl.gz", b"no gzip", ["a.jsonl.gz", "gzip"]),
])
def test_bad_input_is_named_and_leaves_nothing(tmp_path, tokenizer, name, data, words):
    (tmp_path / name).write_bytes(data)
    message = make(tmp_path, tokenizer, name, code=1).stderr
    assert all(word in message for word in words), message
    assert "Traceback" not in message
    assert list((tmp_path / "out").iterdir()) == []


def test_bad_input_with_workers(tmp_path, tokenizer):
    write_lines(tmp_path / "a.jsonl", [*({"text": text} for text in sentences(6, 3000)), {"text": 3}])
    message = make(tmp_path, tokenizer, "a.jsonl", "--workers", 2, code=1).stderr
    assert "a.jsonl:3001" in message and "Traceback" not in message
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("arguments, words", [
    (["nowhere.jsonl"], ["nowhere.jsonl", "no such file"]),
    (["a.txt", "--end-of-document", "</s>"], ["</s>", END]),
    (["a.txt", "--prompt-key", "p", "--completion-key", "c"], ["a.txt", "JSON lines"]),
])
def test_bad_arguments(tmp_path, tokenizer, arguments, words):
    (tmp_path / "a.txt").write_text("text")
    message = make(tmp_path, tokenizer, *arguments, code=1).stderr
    assert all(word in message for word in words), message


def test_no_end_known(tmp_path, tokenizer):
    (tmp_path / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    (tmp_path / "a.txt").write_text("text")
    assert "--end-of-document" in make(tmp_path, tmp_path, "a.txt", code=1).stderr
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in make(tmp_path, tmp_path, "a.txt", code=1).stderr


def test_what_is_there_is_kept(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("text")
    make(tmp_path, tokenizer, "a.txt")
    before = outputs(tmp_path)
    (tmp_path / "a.txt").write_text("other")
    assert "--overwrite" in make(tmp_path, tokenizer, "a.txt", code=1).stderr
    assert outputs(tmp_path) == before


def test_memory_does_not_grow_with_the_data(tmp_path, tokenizer):
    """Four times the data takes no more than what its allocators waste."""
    peaks = []
    for megabytes in (4, 16):
        text = "\n".join(sentences(4, 2000))
        with open(tmp_path / "text.txt", "w", encoding="utf-8") as file:
            for _ in range(megabytes * 1_000_000 // len(text.encode())):
                file.write(text)
        command = [sys.executable, "-c", "import resource, runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__');"
                   "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)",
                   REPOSITORY / "scripts/make_tokens", "--tokenizer", tokenizer, "--out", "out/corpus", "text.txt", "--overwrite"]
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
        peaks.append(int(done.stderr.split()[-1]) // 1024)
    assert peaks[1] < 1.5 * peaks[0], peaks


class TestTheProgramReadsThem:
    @pytest.fixture
    def folder(self, workspace, tokenizer):
        write_lines(workspace.folder / "pairs.jsonl", [{"p": text, "c": " " + text[:20]} for text in sentences(5, 60)])
        write_model_config(workspace.folder / "model", vocab_size=300)
        (workspace.folder / "tokenizer").mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (workspace.folder / "tokenizer" / name).write_bytes((tokenizer / name).read_bytes())
        return workspace.folder

    def test_masked_targets_do_not_count(self, engine, workspace, folder):
        make(folder, folder / "tokenizer", "pairs.jsonl", "--prompt-key", "p", "--completion-key", "c")
        mask = read_mask(folder / "out/corpus")
        samples = (len(mask) - 1) // SEQUENCE_LENGTH
        config = workspace.config(data={"path": "out/corpus"})
        answer = engine.run("eval", config, "--json").json
        assert answer["tokens"] == mask[1:samples * SEQUENCE_LENGTH + 1].sum()
        assert engine.run("eval", config, "--json", "--set", "data.mask=none").json["tokens"] == samples * SEQUENCE_LENGTH
        run = engine.train(config)
        engine.run("train", config, "--set", "data.mask=none", "--set", "output.dir=unmasked")
        assert run.column("loss") != [json.loads(line)["loss"] for line in (folder / "unmasked/metrics.jsonl").read_text().splitlines()]

    def test_a_batch_without_targets_changes_nothing_but_decay(self, engine, workspace, folder):
        make(folder, folder / "tokenizer", "pairs.jsonl", "--prompt-key", "p", "--completion-key", "c")
        mask, batch, steps = read_mask(folder / "out/corpus"), GLOBAL_BATCH * SEQUENCE_LENGTH, 6
        has_targets = [bool(mask[step * batch + 1:(step + 1) * batch + 1].any()) for step in range(steps)]
        assert set(has_targets) == {True, False}, "these texts show nothing"
        run = engine.train(workspace.config(data={"path": "out/corpus"}, train={"steps": steps}))
        assert [loss > 1 for loss in run.column("loss")] == has_targets
        assert [norm > 0 for norm in run.column("grad_norm")] == has_targets

    def test_a_mask_of_everything_is_refused(self, engine, workspace, folder):
        make(folder, folder / "tokenizer", "pairs.jsonl", "--prompt-key", "p", "--completion-key", "c")
        path = folder / "out/corpus.mask"
        data = path.read_bytes()
        path.write_bytes(data[:24] + bytes(len(data) - 24))
        message = engine.run("train", workspace.config(data={"path": "out/corpus"}), code=4).err
        assert "corpus.mask" in message and "data.mask" in message

    def test_a_mask_of_other_files(self, engine, workspace, folder):
        make(folder, folder / "tokenizer", "pairs.jsonl", "--prompt-key", "p", "--completion-key", "c")
        path = folder / "out/corpus.mask"
        path.write_bytes(path.read_bytes()[:-1])
        assert "corpus.mask" in engine.run("train", workspace.config(data={"path": "out/corpus"}), code=4).err

    def test_ids_that_the_model_lacks(self, folder):
        write_model_config(folder / "tokenizer", vocab_size=200)
        message = make(folder, folder / "tokenizer", "pairs.jsonl", "--key", "p", code=1).stderr
        assert "vocab_size" in message and "200" in message and "300" in message
