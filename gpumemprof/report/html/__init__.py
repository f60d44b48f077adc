"""The report as one HTML file, and the viewer that others show profiles with.

- ``page(profile, title, view)``: a whole file, which opens from disk, offline, without WebGL.
- ``diff_page(before, after, title)``: the same for what changed between two profiles.
- ``data(profile, title, view)``, ``diff_data(before, after, title)``: what a page shows, as JSON.
- ``assets()``: the viewer's script and style, for a server that has pages of its own.

The viewer's only global is ``window.gpumemprof``: ``gpumemprof.show(data, element)`` draws data of
the shape below into an element (by default the ``main`` of the page), in place of what it held.

``gpumemprof.timeline({duration, series: [{name, times, values}], marks: [{time, text}]})`` gives an
element with step lines over time alone, in microseconds and bytes.

Shape of the data
-----------------
JSON without floats but where said; columns rather than rows, because there may be 20,000 stacks.
Every text that came from a profiled program has been made printable and short here; the viewer
puts text into the page as text, never as markup. Numbers beyond 2**53 lose their last digits.

================  ==========================================================================
``version``       of this shape: 1
``mode``          ``profile``, or ``diff``: then ``before`` is there, too
``title``         of the page
``command``       what was recorded, may be empty
``recorded``      when and how long, in words
``about``         [name, text] pairs: versions, kernel
``view``          the sample type to begin with, from ``types``
``types``         names of the sample types (profile/model.py), in the order of ``values``
``losses``        sentences: what is missing; empty if the profile is complete
``notices``       sentences: what else was counted
``hints``         sentences: what to know about the frameworks
``strings``       texts that the rest refers to by number; 0 is empty
``functions``     columns ``name``, ``file``, ``module`` (strings), ``origin`` (a place in
                  ``origins``), ``cuda`` (1: a CUDA call or CUDA's inside, owns no memory)
``origins``       python, native, cuda, nccl, note
``frames``        columns ``function``, ``line`` (0: not known)
``nodes``         stacks as a tree, parents first: columns ``up`` (how many places before it the
                  parent stands; 0: none), ``frame``
``labels``        columns ``process``, ``pod``, ``device``, ``kind``, ``call`` (strings): one row
                  for each set of labels
``samples``       columns ``node`` (the innermost frame), ``owner`` (the node that the bytes
                  belong to, report/functions.py), ``labels``; ``values``: one column for each type
``before``        columns as ``values``, for the same samples
``pinned``        the value of ``kind`` that is no GPU memory
``processes``     a row for each: name, command, state; in_use, peak, pinned_in_use, pinned_peak,
                  driver, not_tracked (bytes, the last two may be null)
``failures``      one for each place, largest number first: call, error, where (texts), times
                  (how often), when, requested, free, total (bytes or null), in_use, node (of the
                  stack), live: columns ``sample``, ``bytes``; live_omitted
``failed``        number of all failed allocations
``timeline``      null, or ``duration``, ``series``: rows with ``labels``, ``times`` (rising) and
                  ``values`` (bytes from then on), ``left_out``: how many more there are, and
                  ``marks`` of failures: rows with ``labels``, ``time`` and ``text``; times are
                  microseconds from the start
``growth``        ``stacks`` whose memory rises steadily, fastest first: rows with ``labels``,
                  ``node``, ``owner``, ``per_minute``, ``grown`` (bytes), ``rising`` of ``steps``
                  (observations), ``times``, ``values`` as in ``timeline``; ``left_out``
================  ==========================================================================
"""

from gpumemprof.report.html.contents import data, diff_data
from gpumemprof.report.html.document import assets, diff_page, page

__all__ = ["assets", "data", "diff_data", "diff_page", "page"]
