/* tapegrad convert --adapter. */
#ifndef TAPEGRAD_CONVERT_ADAPTER_H
#define TAPEGRAD_CONVERT_ADAPTER_H

/* Adds the adapters to the model in the directory `from` or, if that is NULL, to the one that they name, and saves it
 * to the directory `to`. Returns the exit status. */
int convert_adapter(const char *from, const char *adapter, const char *to);

#endif
