"""A site's program for one task, which accepts the app of these tests instead of fedtailor's."""

from fedtailor.deployment.flower import only_our_app

if __name__ == "__main__":
    only_our_app.COMPONENTS["serverapp"] = "echo_server:server_app"
    only_our_app.main()
