import unittest

from app.server import answer


class AnswerTest(unittest.TestCase):
    def test_health(self):
        self.assertEqual(answer("/healthz"), (200, {"status": "ok"}))

    def test_unknown(self):
        self.assertEqual(answer("/")[0], 404)
