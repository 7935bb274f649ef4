/* Characters: UTF-8, white space, and the characters that byte-level tokenizers write for bytes. */
#ifndef TG_TEXT_UNICODE_H
#define TG_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#include <tapegrad/types.h>

/* Returns the length in bytes of the character that begins with this byte. The text must be valid UTF-8. */
static inline size_t tg_char_length(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Returns the offset of the character that ends before s[at]; 0 if at is 0. */
static inline size_t tg_char_before(const char *s, size_t at) {
    while (at > 0 && ((unsigned char)s[--at] & 0xc0) == 0x80) continue;
    return at;
}

/* Returns the character at s, and sets *n to its length in bytes. The text must be valid UTF-8. */
uint32_t tg_char_at(const char *s, size_t *n);
/* Writes a character as UTF-8, and returns its length in bytes. */
size_t tg_char_write(char s[4], uint32_t c);
/* Returns whether the character has the property White_Space (Unicode, PropList.txt). */
bool tg_char_is_space(uint32_t c);

/* A byte-level tokenizer writes printable characters of Latin-1 as they are, and each other byte as a character from
 * U+0100 on, in order (Radford et al., 2019). Returns the character of a byte. */
uint32_t tg_byte_char(unsigned char byte);
/* Returns the byte that a character stands for; -1: it stands for none. */
int tg_char_byte(uint32_t c);

/* Returns the length in bytes of the character with which the n >= 1 bytes at s begin, or 0 if they begin with none.
 * Then *wrong is the number of bytes that one U+FFFD replaces (Unicode 15, section 3.9, "maximal subpart"), or 0 if the
 * text ends within a character. */
size_t tg_char_check(const char *s, size_t n, size_t *wrong);

#endif
