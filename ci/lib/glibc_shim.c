/* The C23 names that glibc 2.38 gave to four old functions, for a glibc that lacks them.
 *
 * A binary built against glibc >= 2.38 calls these; they differ from their older selves only in
 * accepting binary literals ("0b1"), which nothing in UCC's configuration uses.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

long __isoc23_strtol(const char *text, char **end, int base) { return strtol(text, end, base); }

unsigned long __isoc23_strtoul(const char *text, char **end, int base) { return strtoul(text, end, base); }

int __isoc23_sscanf(const char *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int converted = vsscanf(text, format, args);
  va_end(args);
  return converted;
}

int __isoc23_fscanf(FILE *file, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int converted = vfscanf(file, format, args);
  va_end(args);
  return converted;
}
