"""The estimate compared with a real tokenizer, for prose in many languages and for code."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock.gateway.dialects.token_estimate
from penstock.gateway.dialects.token_estimate import estimate_tokens
from penstock.tokens.tiktoken_vocabulary import open_packaged_tekken
from penstock.tokens.tokenizer import Tokenizer

TEXTS = {
    "English": "The gateway reads a request, looks up the alias that the caller sent, and forwards the body with the "
    "name that the provider has for the model. At the end of the reply it writes down what was used.",
    "German": "Die Schleuse liest eine Anfrage, schlägt den Namen nach, den der Aufrufer geschickt hat, und reicht sie "
    "mit dem Namen weiter, den der Anbieter für das Modell verwendet. Am Ende schreibt sie den Verbrauch auf.",
    "French": "La passerelle lit une requête, cherche l'alias que l'appelant a envoyé et transmet le corps avec le nom "
    "que le fournisseur donne au modèle. À la fin de la réponse, elle note ce qui a été consommé.",
    "Russian": "Шлюз читает запрос, находит псевдоним, который прислал клиент, и передаёт тело запроса дальше с тем "
    "именем модели, которое использует поставщик. Когда ответ закончен, он записывает расход.",
    "Chinese": "网关读取请求，查找调用方发送的别名，并把请求体以上游自己的模型名称转发出去。回复结束之后，它会记录用量。",
    "Japanese": "ゲートウェイはリクエストを読み、呼び出し元が送った別名を調べ、上流が使うモデル名に書き換えて転送します。",
    "Korean": "게이트웨이는 요청을 읽고 호출자가 보낸 별칭을 찾은 다음 업스트림의 모델 이름으로 본문을 전달합니다.",
    "Arabic": "تقرأ البوابة الطلب وتبحث عن الاسم المستعار الذي أرسله المتصل ثم تمرر النص باسم النموذج لدى المزود.",
    "Hindi": "गेटवे अनुरोध को पढ़ता है, कॉलर द्वारा भेजे गए उपनाम को खोजता है और अपस्ट्रीम के मॉडल नाम के साथ आगे भेजता है।",
    "Python": Path(penstock.gateway.dialects.token_estimate.__file__).read_text(),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_packaged_tekken("tekken")


@pytest.mark.parametrize("language", TEXTS)
def test_estimate_is_within_a_third_of_the_tokenizer(language: str, tokenizer: Tokenizer) -> None:
    real = tokenizer.count(TEXTS[language])
    assert 0.67 * real < estimate_tokens(TEXTS[language]) < 1.33 * real


def test_estimate_of_byte_counts_and_edge_cases() -> None:
    assert [estimate_tokens(n) for n in (-1, 0, 1, 4, 5, 4000)] == [0, 0, 1, 1, 2, 1000]
    assert [estimate_tokens(text) for text in ("", "a", "abcd", "abcde", "\ud800", "🎉")] == [0, 1, 1, 2, 1, 2]
    assert estimate_tokens("x" * 4000) == estimate_tokens(4000)
