/* UCX: its tag-matching messages (UCP), with reports of failed peers. */
#include <string.h>
#include <sys/types.h>
#include <ucp/api/ucp.h>

#include "carrier.h"

static ucp_worker_h worker;
static ucp_ep_h peer;
static void *sent[2];
static int sends;

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
    (void)arg, (void)ep;
    lost(ucs_status_string(status));
}

void carrier_open(int me, const char *where) {
    ucp_config_t *config;
    ucp_context_h context;
    ucp_address_t *mine;
    char theirs[4096], buffer[4096] = {0};
    size_t n = 0;
    ucp_config_read(NULL, NULL, &config);
    ucp_config_modify(config, "TLS", where);
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t w = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    (void)me;
    if (ucp_init(&p, config, &context) || ucp_worker_create(context, &w, &worker) ||
        ucp_worker_get_address(worker, &mine, &n) || n > sizeof buffer)
        lost("UCX cannot start");
    memcpy(buffer, mine, n);
    swap_bytes(buffer, theirs, sizeof buffer);
    ucp_ep_params_t e = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLER,
                         .address = (ucp_address_t *)theirs,
                         .err_mode = strstr(where, "tcp") ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
                         .err_handler.cb = on_error};
    if (ucp_ep_create(worker, &e, &peer)) lost("UCX cannot connect");
}

static void await(void *request) {
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
    ucp_request_free(request);
}

void carrier_send(const void *data, size_t n) {
    ucp_request_param_t none = {0};
    sent[sends++] = ucp_tag_send_nbx(peer, data, n, 1, &none);
}

void carrier_receive(void *data, size_t n) {
    ucp_request_param_t none = {0};
    await(ucp_tag_recv_nbx(worker, data, n, 1, (ucp_tag_t)-1, &none));
}

void carrier_flush(void) {
    while (sends) await(sent[--sends]);
}
