// SPDX-License-Identifier: MIT
// Orders of customers in hash maps and lists, some of them cancelled: objects of many ages for a
// garbage collector that copies and marks.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Random;

final class Orders {
    record Order(int number, String item, int amount) {}

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        var random = new Random(1);
        var byCustomer = new HashMap<String, ArrayList<Order>>();
        for (int number = 0; number < count; number++) {
            int customer = (int) (count / 8.0 * Math.pow(random.nextDouble(), 3));
            var orders = byCustomer.computeIfAbsent("customer" + customer, k -> new ArrayList<>());
            orders.add(new Order(number, "item" + random.nextInt(5000), random.nextInt(100)));
            if (number % 5 == 0) {
                orders.remove(random.nextInt(orders.size()));
            }
        }
        long total = 0;
        for (var orders : byCustomer.values()) {
            for (var order : orders) {
                total += order.amount() + order.item().length() + order.number() % 2;
            }
        }
        System.out.println(byCustomer.size() + " customers, orders verified: " + (total > count));
    }
}
