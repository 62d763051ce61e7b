// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
// A leak in C++: goods that are taken from a cart and not deleted, beside a cart that is emptied.
#include <memory>
#include <string>
#include <vector>

#include "steps.h"

namespace shop {
struct Goods {
    char bytes[2048];
};

struct Cart {
    std::vector<Goods *> taken;
    std::vector<std::unique_ptr<Goods>> owned;

    STAY void remove(int count)
    {
        for (int i = 0; i < count; i++)
            taken.push_back(new Goods());
        taken.clear();
    }

    STAY void fill(int count)
    {
        owned.clear();
        for (int i = 0; i < count; i++)
            owned.push_back(std::make_unique<Goods>());
    }
};
} // namespace shop

int main()
{
    shop::Cart cart;

    while (next_step()) {
        cart.fill(300);
        cart.remove(512);
    }
    return 0;
}
