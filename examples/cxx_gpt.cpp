/* Trains a small GPT on sequences that count, in C++17, and lets it continue one. The model and its loss are functions
 * of the C headers, which take the objects of C++ as they are. */
#include <cstdio>
#include <memory>

#include <tapegrad/gpt.h>
#include <tapegrad/tapegrad.hpp>

namespace {

constexpr int64_t classes = 10, batch = 8, length = 16;

/* Returns `count` numbers from `first` on, each the one before plus 1, modulo the number of classes. */
std::vector<int64_t> counting(int64_t first, int64_t count) {
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < count; i++) numbers.push_back((first + i) % classes);
    return numbers;
}

/* Returns a batch of sequences, the first of which begins with `first`, and each with the number after the last one's.
 */
std::vector<int64_t> sequences(int64_t first) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < batch; i++)
        for (int64_t number : counting(first + i, length)) all.push_back(number);
    return all;
}

double train_step(const tapegrad::nn_module &gpt, const tapegrad::tape &t, const tapegrad::optimizer &opt,
                  int64_t first) {
    tapegrad::tensor ids = t.input({batch, length}, sequences(first));
    tapegrad::tensor next = t.input({batch, length}, sequences(first + 1));
    tapegrad::tensor loss(tg_gpt_loss(gpt, t, ids, next, TG_LOSS_MEAN), t);
    t.backward(loss);
    opt.step();
    opt.zero_grad();
    return loss.item();
}

/* Returns `count` numbers with which the model continues the sequence that begins with `first`. */
std::vector<int64_t> continued(const tapegrad::nn_module &gpt, const tapegrad::tape &t, int64_t first, int count) {
    std::unique_ptr<tg_gpt_cache, void (*)(tg_gpt_cache *)> cache(tg_gpt_cache_new(gpt, 1, length), tg_gpt_cache_free);
    std::vector<int64_t> numbers{first};
    for (int i = 0; i < count; i++) {
        tapegrad::tensor ids = t.input({1, 1}, std::vector<int64_t>{numbers.back()});
        tapegrad::tensor logits(tg_gpt_next(gpt, t, cache.get(), ids), t);
        numbers.push_back(argmax(logits, 1).values<int64_t>()[0]);
    }
    return numbers;
}

} // namespace

int main() try {
    tapegrad::context ctx([](auto &c) { c.seed = 1; });
    tapegrad::options<tg_gpt_config> config([](auto &c) {
        c.vocab = classes;
        c.layers = 2;
        c.heads = 2;
        c.hidden = 32;
        c.positions = length;
    });
    tapegrad::nn_module gpt(tg_gpt_new(ctx, config));
    tapegrad::optimizer opt(tg_adamw_new, ctx, gpt.params(), [](auto &o) { o.lr = 3e-3; });
    tapegrad::tape t(ctx);
    for (int step = 0; step < 60; step++, t.reset()) {
        double loss = train_step(gpt, t, opt, step);
        if (step % 20 == 0) std::printf("%4d  %.3f\n", step, loss);
    }
    std::vector<int64_t> numbers = continued(gpt, t, 7, 9);
    ctx.check(); /* the one check of the calls of C */
    for (int64_t number : numbers) std::printf("%d ", static_cast<int>(number));
    std::printf("\n");
    return numbers == counting(7, 10) ? 0 : 1;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
