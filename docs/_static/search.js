// How well a page answers a question: by the words of the question in its title or heading, then as Sphinx says.
var Scorer = {
  // the numbers of Sphinx for names, titles and texts
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  // lists of everything: they hold nearly every word
  long: /^reference\/(api|commands|configuration|example|toolkit)$|index$/,

  stems(text) {
    const stemmer = new Stemmer();
    const words = text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
    const counted = words.filter((word) => !(stopwords.has ? stopwords.has(word) : stopwords.includes(word)));
    return new Set(counted.map((word) => stemmer.stemWord(word)));
  },

  score([page, title, , , score]) {
    const asked = Scorer.stems(new URLSearchParams(window.location.search).get("q") || "");
    const named = Scorer.stems(title);
    const common = [...asked].filter((stem) => named.has(stem)).length;
    const match = asked.size ? (100 * common) / asked.size - 2 * (named.size - common) : 0;
    return score + match - (Scorer.long.test(page) ? 40 : 0);
  },
};
