"""Mode ar of a plain model and lm-eval's own Hugging Face model give the same numbers: same borders, same cuts."""

import pytest
from scoring import complain, loaded, values
from tiny import END, byte_tokenizer, native, tiny_model

from unmask.evaluate.likelihood import score, score_rolling
from unmask.evaluate.pairs import encode, encode_pair, prefix_token, windows

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.filterwarnings("ignore")

LONG = "once upon a time there was a model with few positions, " * 3
TEXTS = [
    ("Question: why?\nAnswer:", " because"),
    ("Question: why?\nAnswer:", " no"),
    ("Question: why?\nAnswer: ", "blanks of the context move over"),
    ("Question: why?\nAnswer: \n", "x"),
    ("", "an empty context"),
    ("", "<end>with the prefix already there"),
    (LONG, " a long context"),
    (LONG, "!"),
    ("é ", "ü"),
]


class Asked:
    """A request as lm-eval hands it over."""

    def __init__(self, *args):
        self.args = args


@pytest.fixture(scope="module")
def pair():
    """lm-eval's model, and ours on either backbone."""
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = tiny_model(max_position_embeddings=64), byte_tokenizer(eos_token="<end>", pad_token="<pad>")
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3, max_length=64, device="cpu")
    ours = [loaded(model, None, tokenizer), loaded(model, None, tokenizer, backbone=native(model))]
    return theirs, ours


def test_answers_are_those_of_lm_evals_own_model():
    """The same prompts, greedy, float32: lm-eval's Hugging Face model and our mode ar write the same."""
    from lm_eval.models.huggingface import HFLM

    from unmask.evaluate.asking import answer
    from unmask.evaluate.harness import UnmaskLM

    model, tokenizer = tiny_model(), byte_tokenizer(eos_token="<end>", pad_token="<pad>")
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=512, device="cpu")
    ours = loaded(model, None, tokenizer, backbone=native(model))
    ours.checkpoint.stop_ids = (END,)

    def ask(jobs):
        return {record["number"]: record for record in answer(ours, jobs)}

    lm = UnmaskLM(ours.checkpoint, {"mode": "ar"}, ask, positions=512, chat=False)
    free = [Asked(text, {"until": [], "max_gen_toks": 24}) for text in ("One", "Two words", "Three short words")]
    texts = theirs.generate_until(free, disable_tqdm=True)
    stop = texts[0][5:7]
    asked = [*free, Asked("One", {"until": [stop], "max_gen_toks": 24})]
    for number, request in enumerate(asked):
        request.task_name, request.doc_id, request.idx = "t", number, 0
    wanted = theirs.generate_until(asked, disable_tqdm=True)
    assert lm.generate_until(asked) == wanted and stop not in wanted[3] and len(wanted[0]) > 5


def test_borders_lie_where_lm_eval_has_them(pair):
    theirs, ours = pair
    assert prefix_token(ours[0].checkpoint) == theirs.prefix_token_id == END
    for context, continuation in TEXTS:
        if context:
            assert encode_pair(ours[0].checkpoint, context, continuation) == theirs._encode_pair(context, continuation)


def test_pairs_have_lm_evals_numbers(pair):
    theirs, ours = pair
    wanted = theirs.loglikelihood([Asked(*each) for each in TEXTS], disable_tqdm=True)
    lines = []
    for model in ours:
        pairs = [encode_pair(model.checkpoint, *each) for each in TEXTS]
        found = dict(score(model, pairs, say=lines.append))
        for index, (log_p, greedy) in enumerate(wanted):
            assert found[index].log_probability == pytest.approx(log_p, abs=1e-4)
            assert found[index].greedy == greedy
    assert len(lines) == 2 and "2 of 9 contexts are cut" in lines[0]


def test_whole_texts_have_lm_evals_numbers(pair):
    theirs, ours = pair
    texts = [LONG, "short", "a" * 64, "b" * 65]
    wanted = theirs.loglikelihood_rolling([Asked(text) for text in texts], disable_tqdm=True)
    for model in ours:
        found = dict(
            score_rolling(model, [encode(model.tokenizer, text, special=False) for text in texts], say=complain)
        )
        assert [found[i].log_probability for i in range(4)] == pytest.approx(wanted, abs=1e-3)
        assert [found[i].tokens for i in range(4)] == [len(text) for text in texts]


@pytest.mark.parametrize("longest", [1, 2, 7, 30])
@pytest.mark.parametrize("length", [0, 1, 6, 7, 8, 14, 29])
def test_windows_are_lm_evals(length, longest):
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    tokens = list(range(100, 100 + length))
    wanted = [make_disjoint_window(each) for each in get_rolling_token_windows(tokens, 5, longest, 1)]
    assert list(windows(tokens, 5, longest)) == wanted


def test_the_numbers_are_not_trivially_equal(pair):
    """The control: another text, or the law of another model, does not pass."""
    theirs, ours = pair
    [(log_p, _)] = theirs.loglikelihood([Asked("Question: why?\nAnswer:", " because")], disable_tqdm=True)
    other = encode_pair(ours[0].checkpoint, "Question: why?\nAnswer:", " becausf")
    assert abs(float(values(ours[0], [other])) - log_p) > 1e-2
