CREATE TABLE customers (
    id      INTEGER PRIMARY KEY,
    name    TEXT NOT NULL,
    country TEXT NOT NULL            -- two letters
);

CREATE TABLE orders (
    id          INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    ordered_on  TEXT NOT NULL,       -- YYYY-MM-DD
    status      TEXT NOT NULL CHECK (status IN ('open', 'paid', 'cancelled'))
);

CREATE TABLE order_lines (
    order_id   INTEGER NOT NULL REFERENCES orders (id),
    quantity   INTEGER NOT NULL,
    unit_price INTEGER NOT NULL,     -- cents
    discount   INTEGER NOT NULL DEFAULT 0  -- per cent
);
