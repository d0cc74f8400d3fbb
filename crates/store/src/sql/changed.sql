-- What changed between two versions (or hosts, or days): shares of functions, themselves and with what they call.
WITH chosen AS (
    SELECT
        stack,
        SUM(CASE WHEN {by} = {old} THEN count ELSE 0 END) AS old_n,
        SUM(CASE WHEN {by} = {new} THEN count ELSE 0 END) AS new_n
    FROM {samples}
    WHERE ({by} = {old} OR {by} = {new}) AND {where}
    GROUP BY stack
),
whole AS (
    SELECT SUM(old_n) AS old_n, SUM(new_n) AS new_n FROM chosen
),
on_stack AS (
    SELECT DISTINCT stack, function, is_self FROM stack_functions WHERE {partitions}
),
counted AS (
    SELECT
        s.function,
        SUM(CASE WHEN s.is_self THEN c.old_n ELSE 0 END) AS old_self,
        SUM(CASE WHEN s.is_self THEN c.new_n ELSE 0 END) AS new_self,
        SUM(c.old_n) AS old_total,
        SUM(c.new_n) AS new_total
    FROM chosen c JOIN on_stack s ON s.stack = c.stack
    GROUP BY s.function
),
shares AS (
    SELECT
        c.function,
        1e2 * c.old_self / NULLIF(w.old_n, 0) AS old_self,
        1e2 * c.new_self / NULLIF(w.new_n, 0) AS new_self,
        1e2 * c.old_total / NULLIF(w.old_n, 0) AS old_total,
        1e2 * c.new_total / NULLIF(w.new_n, 0) AS new_total
    FROM counted c CROSS JOIN whole w
),
named AS (
    SELECT DISTINCT id, function, module FROM functions WHERE {partitions}
)
SELECT
    s.new_self - s.old_self AS self_change, s.old_self, s.new_self,
    s.new_total - s.old_total AS total_change, s.old_total, s.new_total,
    n.function, n.module
FROM shares s JOIN named n ON n.id = s.function
ORDER BY ABS(s.new_self - s.old_self) DESC, ABS(s.new_total - s.old_total) DESC, s.function
LIMIT {limit}
