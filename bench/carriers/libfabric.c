/* libfabric: tagged messages of a reliable datagram endpoint. */
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_errno.h>

#include "carrier.h"

static struct fid_ep *ep;
static struct fid_cq *sends, *receives;
static struct fi_context2 of_send[2], of_receive;
static fi_addr_t peer;
static int in_flight;

static void need(ssize_t error) {
    if (error) lost(fi_strerror((int)-error));
}

void carrier_open(int me, const char *where) {
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fi_cq_attr c = {.format = FI_CQ_FORMAT_TAGGED};
    struct fi_av_attr a = {.type = FI_AV_UNSPEC};
    char mine[512] = {0}, theirs[512];
    size_t n = sizeof mine;
    (void)me;
    hints->fabric_attr->prov_name = strdup(where);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    need(fi_getinfo(FI_VERSION(1, 11), strstr(where, "shm") ? NULL : "127.0.0.1", NULL,
                    strstr(where, "shm") ? 0 : FI_SOURCE, hints, &info));
    need(fi_fabric(info->fabric_attr, &fabric, NULL));
    need(fi_domain(fabric, info, &domain, NULL));
    need(fi_cq_open(domain, &c, &sends, NULL));
    need(fi_cq_open(domain, &c, &receives, NULL));
    need(fi_av_open(domain, &a, &av, NULL));
    need(fi_endpoint(domain, info, &ep, NULL));
    need(fi_ep_bind(ep, &av->fid, 0));
    need(fi_ep_bind(ep, &sends->fid, FI_TRANSMIT));
    need(fi_ep_bind(ep, &receives->fid, FI_RECV));
    need(fi_enable(ep));
    need(fi_getname(&ep->fid, mine, &n));
    swap_bytes(mine, theirs, sizeof mine);
    if (fi_av_insert(av, theirs, 1, &peer, 0, NULL) != 1) lost("no address");
}

/* Returns whether one operation of the queue has ended. The other queue moves on too. */
static int poll_queue(struct fid_cq *q) {
    struct fi_cq_tagged_entry entry;
    ssize_t n = fi_cq_read(q, &entry, 1);
    if (n == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(q, &error, 0);
        lost(fi_strerror(error.err));
    }
    if (n != -FI_EAGAIN && n < 0) need(n);
    return n == 1;
}

static void progress(void) {
    if (poll_queue(sends)) in_flight--;
}

void carrier_send(const void *data, size_t n) {
    ssize_t error;
    while ((error = fi_tsend(ep, data, n, NULL, peer, 1, &of_send[in_flight])) == -FI_EAGAIN) progress();
    need(error);
    in_flight++;
}

void carrier_receive(void *data, size_t n) {
    ssize_t error;
    while ((error = fi_trecv(ep, data, n, NULL, FI_ADDR_UNSPEC, 1, 0, &of_receive)) == -FI_EAGAIN) progress();
    need(error);
    while (!poll_queue(receives)) continue;
}

void carrier_flush(void) {
    while (in_flight) {
        progress();
        fi_cq_read(receives, NULL, 0);
    }
}
