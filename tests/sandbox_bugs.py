"""Forty public bugs of sandboxes and image caches, further tests that their reports call for, and what keeps each from
being ours: the tests that would fail on the runtimes that promise it, or why it cannot occur. `test_sandbox_bugs.py`
checks that the table is complete and that every test named here is collected on those runtimes.
"""

from dataclasses import dataclass

from prorl_cli.sandbox.capabilities import RUNTIMES

EVERY = tuple(RUNTIMES)
WALLED = tuple(name for name, row in RUNTIMES.items() if row.walls)
APPTAINER = ("apptainer",)

OF_ONE_RUNTIME = {
    "tests/test_sandbox_walls.py": "bwrap",
    "tests/test_sandbox_roots.py": "bwrap",
    "tests/cluster/test_apptainer.py": "apptainer",
}
"""Files whose tests are about boxes of one runtime, whatever their parameters."""

BOX, WALLS, ROOTS, LIMITS, KILL = (
    f"tests/test_sandbox_{name}.py::test_" for name in ("box", "walls", "roots", "limits", "kill")
)
HOSTILE, SHELL, FILES, JANITOR = (
    f"tests/test_sandbox_{name}.py::test_" for name in ("hostile", "hostile_shell", "files", "janitor")
)
BASH, LATE, PYTHON = (f"tests/test_sandbox_{name}.py::test_" for name in ("bash", "bash_limits", "python"))
SESSIONS, BASH_BOX = (f"tests/test_sandbox_{name}.py::test_" for name in ("sessions", "bash_box"))
IMAGE = "tests/cluster/test_apptainer.py::test_"
BUILD, PARTS, STORE = (f"tests/test_images_{name}.py::test_" for name in ("build", "parts", "store"))
REAL, SLURM = "tests/cluster/test_images.py::test_", "tests/cluster/test_cache_slurm.py::test_"

UNTOLD = f"{IMAGE}its_launcher_is_told_nothing_that_it_could_take_for_an_option"
CROWD = f"{BOX}sixty_four_boxes_at_once_answer_for_themselves"
KILLED = f"{KILL}a_killed_worker_leaves_nothing"
NO_MOUNT = f"{IMAGE}a_launcher_killed_by_force_is_an_error_of_the_machine_and_leaves_no_mount_behind"
FLAKY = f"{HOSTILE}a_mount_that_fails_for_a_while_costs_boxes_and_not_the_worker"
SECRETS = f"{HOSTILE}no_secret_of_the_worker_is_in_any_environment_or_command_line"
BRICKED = f"{SHELL}a_shell_goes_on_after_what_bricked_others"
TIMEOUT = f"{SHELL}a_timeout_returns_what_was_printed_and_ends_every_descendant"
BLOWS = f"{HOSTILE}blows_at_files_and_processes_hit_nobody_else"
NO_WALLS = f"{WALLS}where_the_kernel_refuses_walls_auto_goes_without_and_says_why"
PLANTED = f"{FILES}what_the_policy_plants_is_told_and_never_followed"
TEN_BUILDERS = f"{BUILD}ten_builders_at_once_build_once_and_use_the_same_image"
HALF_WRITTEN = f"{BUILD}an_image_that_the_builder_left_half_written_is_not_published"
DAMAGED = f"{BUILD}a_stored_image_that_lost_or_changed_a_byte_is_never_used_and_built_anew"
REFUSED = f"{STORE}a_full_and_a_read_only_cache_are_said_in_words_and_what_is_there_is_used"
OWN_CACHE = f"{PARTS}a_build_sees_no_option_of_this_user_and_keeps_proxies_and_logins"
MEMORY_FILES = f"{HOSTILE}files_in_memory_are_bounded"
UNREACHED = f"{HOSTILE}nothing_is_reached_by_name_by_address_or_by_socket"
UNSEEN = f"{HOSTILE}neither_homes_nor_processes_of_the_host_are_seen"
NO_HELP = f"{HOSTILE}no_device_and_no_namespace_helps_out"

NO_INSTANCE = "no instance is ever started: a box is one `exec` that ends with its worker"


@dataclass(frozen=True, slots=True)
class Bug:
    """`number` in the list of public bugs (0: a further test), what users saw, and tests or a reason.

    `on`: runtimes on which a test must stand, those that promise it; none where no box is involved.
    """

    number: int
    where: str
    seen: str
    on: tuple[str, ...]
    tests: tuple[str, ...] = ()
    reason: str = ""


BUGS_OF_OTHERS = (
    Bug(1, "apptainer#3607", "starts fail at random with 24 or more instances: a bus and a cgroup for each", APPTAINER,
        (UNTOLD, CROWD), NO_INSTANCE),
    Bug(2, "apptainer#2762, #2361, #2104, #2216", "a FUSE mount stays behind: something held a file of it", APPTAINER,
        (f"{HOSTILE}jobs_that_hold_files_of_a_packed_image_open_delay_no_end_and_keep_no_mount", NO_MOUNT,
         f"{IMAGE}a_killed_worker_leaves_no_process_mount_or_folder_of_a_packed_image",
         f"{IMAGE}mounts_whose_launcher_went_with_its_zygote_end_at_the_next_start_and_no_others")),
    Bug(3, "apptainer#2658", "the launcher loops for ever after its container has failed", APPTAINER,
        (f"{BOX}a_box_killed_from_outside_is_an_error_of_the_machine", NO_MOUNT, FLAKY)),
    Bug(4, "apptainer#1033, #1232", "a FUSE mount did not come up in 10 s", APPTAINER,
        (FLAKY, f"{IMAGE}only_a_few_boxes_are_on_their_way_at_once")),
    Bug(5, "apptainer#665, #3272, #3198", "several times slower reads through one thread of squashfuse", (),
        (f"{STORE}an_unpacked_copy_is_made_once_and_left_whole",
         f"{REAL}an_image_is_built_proven_run_staged_unpacked_and_removed"),
        "a matter of speed: images can be staged unpacked, and `make bench-sandbox` measures both forms"),
    Bug(6, "apptainer#1313, #636; EngiBench#180", "no space after 64 MiB in /tmp or the overlay", WALLED,
        (f"{HOSTILE}more_than_a_runtime_s_own_sixty_four_mebibytes_can_be_written",)),
    Bug(7, "apptainer#1380, #3657", "a build fills a /tmp that is memory", (),
        (f"{PARTS}memory_is_taken_only_where_no_disk_has_room",
         f"{PARTS}a_build_happens_on_the_first_disk_of_the_node_with_room")),
    Bug(8, "singularity#3634, #5020, #3579, #4555", "a cache that several share is corrupted", (),
        (TEN_BUILDERS, OWN_CACHE)),
    Bug(9, "sprocket#360, PR #1089", "every run pulls, all at once", (),
        (TEN_BUILDERS, f"{STORE}staging_makes_one_proven_copy_for_all_workers_of_a_node")),
    Bug(10, "mini-swe-agent PR #476", "half an answer of a registry ends a build", (),
        (f"{BUILD}a_build_is_tried_again_after_half_an_answer_of_a_registry_and_not_after_an_error_of_its_own",)),
    Bug(11, "apptainer#2601, #1823; singularity#4397, #5434", "packing takes every core and all memory of the node", (),
        (f"{PARTS}the_packing_is_told_what_the_job_was_given",
         f"{PARTS}the_share_is_what_cgroups_and_affinity_leave")),
    Bug(12, "apptainer#3560, #3577", "an image is corrupt and nothing said so", (),
        (HALF_WRITTEN, f"{PARTS}the_versions_whose_packing_corrupts_go_without_proot",
         f"{REAL}an_image_with_a_damaged_block_does_not_pass_for_proven")),
    Bug(13, "singularity#4263, #5186, #4517; sylabs#306, #2937", "an unpacked image that its user cannot delete", ("bwrap",),
        (f"{ROOTS}what_a_box_writes_is_its_own_and_gone_with_it",
         "tests/test_nodelocal.py::test_what_its_owner_closed_to_himself_goes_too_and_nothing_behind_a_link",
         f"{REAL}an_image_is_built_proven_run_staged_unpacked_and_removed")),
    Bug(14, "singularity#2488, #2759, #4332, #3852", "an instance outlives its job, and its name is taken", APPTAINER,
        (KILLED, f"{KILL}worker_and_parent_killed_together_leave_no_process_and_no_folder_past_the_next_start"), NO_INSTANCE),
    Bug(15, "singularity#5884", "orphans after Ctrl-C", EVERY,
        (f"{HOSTILE}an_interrupt_of_the_worker_leaves_nothing", KILLED)),
    Bug(16, "singularity#3334", "the launcher's init signals every process of its user", WALLED, (BLOWS,)),
    Bug(17, "apptainer#2936", "an overlay image is in use by another process", (), (),
        "no overlay image: what a box writes goes to a folder of its own on the node's disk"),
    Bug(18, "singularity#3887, #4539", "no overlay on Lustre and NFS", ("bwrap",),
        (f"{ROOTS}where_the_disk_refuses_an_overlay_boxes_write_to_memory_and_the_log_says_so",)),
    Bug(19, "apptainer#2027, #2608, #2457, #3753; sylabs#2861", "no user namespaces on Ubuntu 24.04", ("bwrap",),
        (NO_WALLS, "tests/test_report_boxes.py::test_the_setting_that_forbids_user_namespaces_is_named")),
    Bug(20, "codex#29908, claude-code#87680", "bwrap: uid map or RTM_NEWADDR denied", ("bwrap",),
        (NO_WALLS, f"{BOX}bwrap_asked_for_and_refused_is_reported_with_its_words_and_a_remedy")),
    Bug(21, "hermes-agent PR #57639", "API keys in the sandbox", EVERY, (SECRETS,)),
    Bug(22, "NeMo-Skills PR #1116", "the outer environment leaks into Apptainer", APPTAINER,
        (SECRETS, f"{IMAGE}nothing_of_the_host_is_seen_or_reached")),
    Bug(23, "bubblewrap#725", "a cleared environment still in /proc/1/environ", WALLED, (SECRETS, UNSEEN)),
    Bug(24, "NeMo-Gym PR #1631", "no limits with fakeroot, and `ulimit -v` ends what only reserves memory", EVERY,
        (f"{HOSTILE}memory_that_is_only_reserved_is_no_limit", f"{LIMITS}every_limit_is_an_outcome_and_the_box_goes_on")),
    Bug(25, "sylabs#2568, fasrc/User_Codes#18", "no instance without a session bus", APPTAINER, (UNTOLD,), NO_INSTANCE),
    Bug(26, "OpenHands#10550", "`set -e` bricks the shell", EVERY,
        (BRICKED, f"{BASH}errexit_that_ended_a_shell_does_not_end_the_next")),
    Bug(27, "OpenHands#13894, #10189", "an idle shell takes most of a core; zombies of tmux", EVERY,
        (f"{HOSTILE}a_box_that_waits_costs_no_processor_time", KILLED,
         f"{LATE}a_shell_that_waits_uses_no_processor_time")),
    Bug(28, "SWE-ReX#29, #9; SWE-agent#1084", "output lost at a timeout; a prompt that changed is waited for", EVERY,
        (TIMEOUT, BRICKED, f"{LATE}a_timeout_gives_the_partial_output_and_the_shell_goes_on_with_its_state")),
    Bug(29, "software-agent-sdk#2181", "a long here-document hangs", EVERY,
        (f"{SHELL}a_here_document_of_megabytes_is_one_command", f"{BASH}a_here_document_of_ten_megabytes_is_one_command")),
    Bug(30, "software-agent-sdk#3684, #1277, #2244, #1330", "pagers, `!`, answers of a terminal, a large environment", EVERY,
        (BRICKED, f"{BASH}programs_are_told_that_nobody_watches", f"{BASH}a_program_that_asks_the_terminal_finds_none")),
    Bug(31, "opencode#22012, pi#7636, turnstone#816, claude-agent-sdk-ts#64", "waits for a child that keeps the output open",
        EVERY, (f"{SHELL}a_child_that_keeps_the_output_open_does_not_hold_the_answer_back",
                f"{PYTHON}what_threads_and_programs_say_later_comes_with_the_next_answer")),
    Bug(32, "codex#4337, #5258; langfuse#15955", "children outlive the timeout", EVERY,
        (TIMEOUT, f"{LATE}a_timeout_leaves_nothing_of_the_command_and_all_of_earlier_ones",
         f"{PYTHON}at_a_timeout_the_programs_that_a_cell_waits_for_end_and_earlier_ones_go_on")),
    Bug(33, "verl#1120, libzmq#1176, klangk#1531", "a socket's path is longer than 107 bytes", APPTAINER,
        (f"{IMAGE}long_and_odd_paths_do_no_harm",), "no socket of a box has a path"),
    Bug(34, "papermill#619", "sockets are left behind", EVERY, (KILLED,), "no socket of a box has a path"),
    Bug(35, "verifiers PR #652, verl#288, AReaL#1426", "a late answer is taken for the next; a timeout that stops nothing",
        EVERY, (f"{SHELL}a_python_that_is_late_leaves_or_dies_answers_the_next_cell_and_no_other",
                f"{PYTHON}an_answer_with_another_number_is_nobodys",
                f"{PYTHON}a_cell_that_does_not_heed_the_interrupt_is_killed_with_its_programs")),
    Bug(36, "code-on-incus PR #477, vm0 PR #6160, headlong PR #72, nbc#85, fullsend#5253",
        "the host's files read and written through planted links", EVERY,
        (PLANTED, f"{FILES}a_hard_link_to_another_file_is_not_read_and_not_written_through")),
    Bug(37, "singularity#5376", "an exec walks the mounts of NFS, home first", APPTAINER, (UNTOLD,)),
    Bug(38, "SWE-bench#242, mini-swe-agent#386", "an image that cannot be written to", WALLED,
        (f"{ROOTS}what_a_box_writes_is_its_own_and_gone_with_it",
         f"{IMAGE}what_a_box_writes_is_bounded_and_gone_with_it")),
    Bug(39, "tree-sitter-bash#346, #305; bashlex#36, #97, #99", "valid commands are refused", EVERY,
        (f"{SHELL}whatever_bash_understands_runs_as_it_is", f"{BASH}whatever_bash_accepts_is_accepted")),
    Bug(40, "Polar", "`rm -rf /*`, `pkill python`, `kill -1` reach shared data, siblings, the control plane", WALLED,
        (BLOWS, f"{SESSIONS}behind_walls_a_cell_that_kills_all_it_can_reach_ends_only_itself",
         f"{BASH_BOX}removing_all_that_can_be_removed_costs_no_more_than_the_state")),
)  # fmt: skip

FURTHER = (
    Bug(0, "fork bomb", "", EVERY,
        (f"{HOSTILE}a_fork_bomb_costs_its_own_command_alone", f"{LIMITS}a_fork_bomb_ends_with_its_call",
         f"{SESSIONS}a_cell_that_forks_without_end_is_a_limit_and_the_state_is_kept")),
    Bug(0, "disk bomb in the upper layer", "", EVERY,
        (f"{HOSTILE}a_disk_bomb_is_ended_and_what_it_wrote_can_be_removed",
         f"{BASH_BOX}a_full_disk_leaves_a_shell_that_can_tidy_up")),
    Bug(0, "disk bomb in /tmp", "", WALLED, (MEMORY_FILES,)),
    Bug(0, "disk bomb in /dev/shm", "", WALLED, (MEMORY_FILES,)),
    Bug(0, "1 GB on a single line", "", EVERY,
        (f"{HOSTILE}a_line_of_a_gigabyte_is_bounded_counted_and_never_held",)),
    Bug(0, "NUL, 0xff and CRLF in output", "", EVERY, (f"{SHELL}bytes_that_are_no_text_come_back_as_they_can",)),
    Bug(0, "paths with spaces, commas, colons, newlines", "", EVERY, (f"{SHELL}any_path_will_do",)),
    Bug(0, "the home of the host", "", WALLED, (UNSEEN,)),
    Bug(0, "/proc/1/environ", "", WALLED, (UNSEEN, SECRETS)),
    Bug(0, "secrets in /proc/*/cmdline", "", EVERY, (SECRETS,)),
    Bug(0, "processes of the host", "", WALLED, (UNSEEN,)),
    Bug(0, "env | grep -i key", "", EVERY, (SECRETS,)),
    Bug(0, "egress: DNS", "", WALLED, (UNREACHED,)),
    Bug(0, "egress: IPv6", "", WALLED, (UNREACHED,)),
    Bug(0, "egress: link-local metadata", "", WALLED, (UNREACHED,)),
    Bug(0, "egress: sockets of the host by path", "", WALLED, (UNREACHED,)),
    Bug(0, "egress: abstract sockets", "", WALLED, (UNREACHED,)),
    Bug(0, "ptrace and kill of siblings", "", WALLED, (f"{HOSTILE}a_sibling_is_neither_seen_traced_nor_ended",)),
    Bug(0, "/dev/fuse absent", "", WALLED, (NO_HELP,)),
    Bug(0, "user namespaces off", "", WALLED, (NO_HELP,)),
    Bug(0, "kill -9 of the driver", "", EVERY,
        (KILLED, f"{JANITOR}programs_and_folders_of_a_killed_worker_go_with_the_next_one",
         "tests/test_sandbox_soak.py::test_five_hundred_episodes_of_workers_that_are_killed_leave_nothing")),
    Bug(0, "two jobs building the same image on two nodes", "", (),
        (f"{SLURM}of_several_jobs_one_builds_and_when_it_is_killed_another_takes_over",
         f"{BUILD}a_holder_of_another_node_loses_its_claim_by_silence_alone")),
    Bug(0, "a half-written SIF", "", (), (HALF_WRITTEN, DAMAGED)),
    Bug(0, "a read-only cache", "", (), (REFUSED,)),
    Bug(0, "a quota that is used up", "", (),
        (REFUSED, f"{PARTS}the_last_words_say_what_to_do_and_whether_to_try_again")),
)  # fmt: skip
