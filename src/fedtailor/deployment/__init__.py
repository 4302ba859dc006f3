"""Training across real sites: messages, supervised processes, keys, the transport over Flower.

Which process runs what; the modules of this package are in brackets::

    server                                        site
    fedtailor serve [supervise_server]            fedtailor site start [supervise_site]
     |  starts, and starts again                   |  starts, and starts again
     +- SuperLink (Flower)                         +- resident [resident, site, site_run]
     +- gate [flower.gate] <-- TLS, open port --   +- SuperNode [flower.supernode]
     +- SuperExec (Flower)                             |  starts one for every message
         |  starts one for every run                   +- ClientApp [flower.only_our_app,
         +- ServerApp [flower.server_app, server]                     flower.client_app]

``serve`` writes ``serving.json`` (what to do), submits a run to the SuperLink, and shows what the
ServerApp writes: ``app.json`` (how it ended), ``attendance.json`` (who is there), ``runs/NNNN``.
From these files it makes ``status.json`` and ``status.html`` [status], also at a port
[status_port].
A request goes from the ServerApp to the SuperLink (its port on 127.0.0.1), waits there until the
SuperNode asks for it through the gate, and the ClientApp takes it to the resident over a Unix
socket. The answer returns the same way.

A request is a ``Work`` (``wire``), an answer a ``SiteAnswer`` (``site_run``). Both travel as an
``Envelope``: a head, and blobs by name, of which ``out`` holds the tensors of an answer. Flower
carries it as a ``RecordDict`` (``flower.records``).
"""
