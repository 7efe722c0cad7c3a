"""Numbers of requests and stamps. `PhaseStats` counts them, because the certificate needs them too."""

from __future__ import annotations

from penstock.metrics.metric import MetricGroup, read_metrics

_METRICS = read_metrics(
    """\
request_count | Request Count | requests | order=1100 larger
    Successful requests.
error_request_count | Error Request Count | requests
    Failed requests. Absent if there are none.
cancelled_request_count | Cancelled Request Count | requests | order=1110
    Requests that the client cancelled. Absent if there are none.
resent_request_count | Resent Request Count | requests | order=1120
    Requests sent a second time, because the server closed the connection before it received them. Absent if there are
    none. Their times count from the second send.
redirect_count | Redirect Count | count | order=1130
    Redirects that were followed. Absent if there are none. The times of a redirected request count from its first send.
completed_request_count | Completed Requests (Success + Error) | requests | order=1075
    request_count + error_request_count.
request_error_rate | Request Error Rate | % | order=1080
    100 * error_request_count / completed_request_count.
context_overflow_count | Context Overflow Count | requests
    Failures whose message mentions the context length. Present if there are failures. Depends on the server's wording.
single_stamp_request_count | Single Stamp Request Count | requests
    Streamed replies whose content has a single stamp, including one-token replies. They have no second token, no gaps
    and no decode duration. A high count means that something on the network path buffers the stream.
coalesced_stamp_count | Coalesced Stamp Count | count
    Stamps that cover several network segments: the first of them may have arrived earlier.
coalesced_first_stamp_count | Coalesced First Stamp Count | requests
    Requests whose first stamp covers several segments: their time_to_first_token is an upper bound.
osl_mismatch_count | OSL Mismatch Count | requests
    Requests whose output length differs from the requested length by more than 5 % or 50 tokens.
usage_discrepancy_count | Usage Discrepancy Count | requests
    Requests in which a usage_*_diff_pct is above 10 %.
""",
    "run",
)

GROUP = MetricGroup(_METRICS, summarize=lambda figures: figures.counts)
