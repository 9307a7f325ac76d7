# What the profile `demo` of docker-compose.yml runs: a day of data, fed at its own pace.
set -eu
python /examples/stock_day.py /tmp/day
for stream in trades quotes reviews; do
    dovetail stream create "$stream" --schema "/tmp/day/$stream" || true
done
name="demo-$(date +%s)"
dovetail submit /examples/prices.sql --name "$name" --results "/results/$name"
for stream in trades quotes reviews; do
    dovetail feed "$stream" "/tmp/day/$stream" --rate 5000/s &
done
wait
dovetail wait "$name"
dovetail close "$name"
dovetail cleanup "$name"
python /examples/check_with_duckdb.py /examples/prices.sql /tmp/day "/results/$name"
