/* Tokenizer files for tests, small enough to merge by hand. */
#ifndef TG_TESTS_TOKENIZER_FILES_H
#define TG_TESTS_TOKENIZER_FILES_H

/* U+2581, which stands for a space. */
#define MARK "\xe2\x96\x81"

#define VOCAB                                                                                                         \
    "{\"<unk>\": 0, \"<s>\": 1, \"</s>\": 2, \"<0xC3>\": 3, \"<0xA9>\": 4, \"<0xF0>\": 5, \"<0x9F>\": 6, "             \
    "\"<0x91>\": 7, \"<0x8D>\": 8, \"" MARK "\": 9, \"a\": 10, \"b\": 11, \"c\": 12, \"" MARK "a\": 13, \"ab\": 14, \""\
    MARK "ab\": 15, \"bc\": 16}"
#define MERGES "[[\"a\", \"b\"], \"" MARK " ab\", [\"b\", \"c\"], \"" MARK " a\"]"
#define MODEL                                                                                                         \
    "{\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, \"byte_fallback\": true, \"vocab\": " VOCAB     \
    ", \"merges\": " MERGES "}"
#define TOKEN(id, content, flags)                                                                                     \
    "{\"id\": " id ", \"content\": \"" content "\", \"normalized\": false, \"special\": true" flags "}"
#define ADDED                                                                                                         \
    "[" TOKEN("1", "<s>", "") ", " TOKEN("2", "</s>", "") ", "                                                        \
    TOKEN("17", "[X]", ", \"lstrip\": true, \"rstrip\": true") "]"
#define NORMALIZER                                                                                                    \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" MARK "\"}, "                  \
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" MARK "\"}]}"
#define DECODER                                                                                                       \
    "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"" MARK "\"}, "        \
    "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, "                                       \
    "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}"
#define POST                                                                                                          \
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "          \
    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "                                                              \
    "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [1], \"tokens\": [\"<s>\"]}}}"

/* A whole file, of which parts may be others. */
#define FILE_OF(model, added, normalizer, pre_tokenizer, post, decoder)                                               \
    "{\"version\": \"1.0\", \"added_tokens\": " added ", \"normalizer\": " normalizer ", \"pre_tokenizer\": "          \
    pre_tokenizer ", \"post_processor\": " post ", \"decoder\": " decoder ", \"model\": " model "}"

/* As SentencePiece's, with fallback to bytes. */
#define SENTENCE_PIECE FILE_OF(MODEL, ADDED, NORMALIZER, "null", POST, DECODER)

#endif
