WITH counted AS (
    SELECT o.id, o.customer_id, substr(o.ordered_on, 1, 7) AS month, c.country
    FROM orders AS o
    JOIN customers AS c ON c.id = o.customer_id
    WHERE o.status <> 'cancelled'
),
sold AS (
    SELECT
        counted.*,
        coalesce(
            (
                SELECT sum(CAST(round(l.quantity * l.unit_price * (100 - l.discount) / 100.0) AS INTEGER))
                FROM order_lines AS l
                WHERE l.order_id = counted.id
            ),
            0
        ) AS revenue
    FROM counted
),
ranked AS (
    SELECT
        month,
        country,
        row_number() OVER (PARTITION BY month ORDER BY sum(revenue) DESC, country) AS place
    FROM sold
    GROUP BY month, country
)
SELECT
    sold.month AS month,
    count(*) AS orders,
    count(DISTINCT sold.customer_id) AS customers,
    sum(sold.revenue) AS revenue,
    ranked.country AS best_country
FROM sold
JOIN ranked ON ranked.month = sold.month AND ranked.place = 1
GROUP BY sold.month, ranked.country
ORDER BY sold.month;
