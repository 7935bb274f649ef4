/* tapegrad convert --adapter: adds low-rank adapters to the weights of their model. */
#ifndef TAPEGRAD_CONVERT_ADAPTER_H
#define TAPEGRAD_CONVERT_ADAPTER_H

/* Adds the adapters in the directory `adapter` to the weights of the model in the directory `from` or, if that is NULL,
 * of the model that they name. Saves the result to the directory `to`. Returns the exit status. */
int convert_adapter(const char *from, const char *adapter, const char *to);

#endif
