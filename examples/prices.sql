-- What does the market think of what is traded? Three feeds, one key.
SELECT t.symbol, t.trade_id, t.price, q.venue, q.bid, r.rating
FROM trades t
JOIN quotes q ON q.symbol = t.symbol
JOIN reviews r ON r.symbol = t.symbol
WHERE t.price > q.bid AND r.rating >= 2
