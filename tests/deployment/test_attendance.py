"""Who is there: what a server writes down of its sites, and what it still knows after it was
started again."""

from fedtailor.deployment.federation_folder import read_attendance, write_attendance
from sites import World, divide_digits, write_arrays

DATA = divide_digits(rows=20)


def test_a_server_that_is_started_again_knows_when_it_heard_of_a_site(tmp_path):
    world = World(tmp_path).write(lambda folder, name: write_arrays(folder, *DATA[name]))
    server = tmp_path / "server"
    write_attendance(
        server, {"clinic": {"online": True, "heard": 7.5, "waiting_since": 5.0, "problem": "late"}}
    )
    seen = []

    def make(sites):
        transport = world.transport_of(sites)
        send = transport.send

        def noting(requests):
            seen.append(read_attendance(server))
            send(requests)

        transport.send = noting
        return transport

    world.serve(make)
    assert seen[0]["clinic"]["heard"] == 7.5
    last = read_attendance(server)
    assert set(last) == set(world.names)
    assert all(each["heard"] > 1e9 and each["waiting_since"] is None for each in last.values())
