#include <memory>
#include <optional>
#include <string>
#include <vector>

enum class State { open, paid };
struct Order {
    std::string customer;
    std::vector<int> prices;
    State state;
};
static int *volatile total;

__attribute__((noinline)) int sum(const Order &order, std::optional<int> discount, double tax)
{
    for (int price : order.prices)
        *total += price;
    return *total - discount.value_or(0) + int(tax);
}

__attribute__((noinline)) int pay(const std::unique_ptr<Order> &order, const std::string &password)
{
    return sum(*order, 4, 0.19) + password.size() + order->prices[0];
}

int main(int argc, char **argv)
{
    auto order = std::make_unique<Order>(Order{"Eve", {7, 12, argc}, State::open});
    return pay(order, "4711-0815") + order->prices[1];
}
