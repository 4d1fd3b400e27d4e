"""Texts that tell tokenizers apart: scripts, digits, spaces, line breaks, contractions, emoji."""

PROBES = (
    "Hello, world! It's 2024; they'LL pay $1,234.56 (or 12345678901 ¥) — isn't that \"great\"?",
    "  two spaces,   three    four\ttab\t\ttabs \n\n newlines\r\n\r\nand more\n\n\n end   ",
    "def f(x):\n    return x**2 + 3.14e-10  # comment_with_underscores CamelCase XMLHttpRequest2\n",
    "Der Öffentlichkeitsarbeit-Ausschuß aß Äpfel für 3€; naïve café, œuvre, São Tomé, Łódź, İstanbul.",
    "Привет, как дела? Всё хорошо 123. Ελληνικά: Καλημέρα κόσμε. עברית: שלום עולם. العربية: مرحبا ١٢٣",
    "你好，世界！今天是2024年5月17日。日本語のテキスト、カタカナとひらがな。한국어 문장입니다 456",
    "हिन्दी में लिखा हुआ १२३, বাংলা, தமிழ், ไทยภาษา, ကမြန်မာ, አማርኛ, ქართული, Հայերեն",
    "😀😃👨‍👩‍👧‍👦🏳️‍🌈 é (combining) ﬁ ligature ½ ² Ⅷ ™ … ‘quotes’ “double” «guillemets» \u00a0nbsp\u200bzero",
    'http://example.com/path?query=1&other=%20#frag user@mail.org <html>&amp;</html> {"json": [1, 2.5]}',
    "don't DON'T we've I'm he'd she's you're 'tis 'S 'T 'RE 'Ve'll",
    "1 12 123 1234 12345 123456 1234567 0x1F 1_000 3rd 42nd 7.0.1 v2",
    "a",
    " a",
    "",
    "\n",
    " ",
    "   \n\n   ",
)
