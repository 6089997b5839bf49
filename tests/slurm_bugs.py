"""Forty-one public bugs of Slurm launchers, and what keeps each from being ours: the tests that would fail, or why it
cannot occur. `test_slurm_bugs.py` checks that the table is complete and that every test named here exists.
"""

from dataclasses import dataclass

STATE, SCRIPT, STEP = "tests/test_slurm_state.py", "tests/test_slurm_script.py", "tests/test_slurm_step.py"
SUBMIT, PREFLIGHT, GRAMMAR = (
    "tests/test_slurm_submit.py",
    "tests/test_slurm_preflight.py",
    "tests/test_slurm_grammar.py",
)
ADDRESS, CLI, BUGS = "tests/test_wire_address.py", "tests/test_cli_jobs.py", "tests/test_slurm_bugs.py"
ON_SLURM, HOSTILE, FAULTS = (
    "tests/cluster/test_script_on_slurm.py",
    "tests/cluster/test_bugs.py",
    "tests/cluster/test_faults.py",
)

SURROUNDINGS = f"{HOSTILE}::test_two_runs_of_one_user_train_side_by_side_whatever_their_names_and_the_user_s_shell"
ALL_SHAPE = f"{STEP}::test_every_step_of_a_heterogeneous_job_says_all_of_its_shape"
NO_OPTION = f"{STEP}::test_a_step_gets_the_job_but_no_option_of_the_batch_step"
SHELL = f"{ON_SLURM}::test_every_component_is_where_the_recipe_says_whatever_the_users_shell_says"
THROUGH_EVERY_FAULT = f"{FAULTS}::test_a_hetjob_ends_at_its_step_through_every_fault_of_processes_nodes_and_slurm"
UNKNOWN_IS_NOT_DONE = f"{STATE}::test_a_job_that_nobody_knows_is_unknown_with_its_age_and_never_done"


@dataclass(frozen=True, slots=True)
class Bug:
    """`number` in the list of public bugs, what users saw, and either tests or the reason why there is none."""

    number: int
    where: str
    seen: str
    tests: tuple[str, ...] = ()
    reason: str = ""


BUGS_OF_OTHERS = (
    Bug(1, "submitit#1720", "endless sacct warnings, state unknown",
        (f"{STATE}::test_without_accounts_the_run_s_own_record_tells_the_end_and_its_age",
         f"{HOSTILE}::test_a_run_is_followed_by_its_job_s_id_on_a_cluster_without_accounts")),
    Bug(2, "snakemake-executor-plugin-slurm#38", "traceback in the status loop without accounting",
        (f"{STATE}::test_without_accounts_the_run_s_own_record_tells_the_end_and_its_age",)),
    Bug(3, "torchx#1070", "list and status useless without sacct",
        (f"{HOSTILE}::test_a_run_is_followed_by_its_job_s_id_on_a_cluster_without_accounts",
         f"{CLI}::test_ls_shows_every_run_with_its_job_and_asks_once")),
    Bug(4, "Parsl#1588", "waits for ever for a job that has left the queue", (UNKNOWN_IS_NOT_DONE,)),
    Bug(5, "Parsl#2207", "a timed-out job reported as completed",
        (UNKNOWN_IS_NOT_DONE, f"{STATE}::test_a_job_that_left_the_queue_is_looked_up_in_the_accounts")),
    Bug(6, "Parsl#2293, #2255", "parsing fails under the user's SQUEUE_FORMAT; long state names",
        (f"{STATE}::test_the_user_s_formats_filters_and_language_are_not_heard",
         f"{STATE}::test_accounts_are_read_with_their_components_and_long_states", SURROUNDINGS)),
    Bug(7, "SlurmCommander#1, jobbergate#722, jobperf#4", "the queue's JSON changes between releases",
        (f"{BUGS}::test_slurm_is_asked_for_text_with_explicit_columns_only",)),
    Bug(8, "skypilot#8907", "an option that an old Slurm does not know",
        (f"{BUGS}::test_slurm_is_asked_for_text_with_explicit_columns_only",)),
    Bug(9, "skypilot#8891, lightning#14896, Megatron-Bridge#3830", "host lists read wrongly",
        ("tests/test_slurm_hostlist.py::test_the_lists_that_broke_other_launchers",
         "tests/cluster/test_hostlist.py::test_every_host_list_expands_as_slurm_expands_it")),
    Bug(10, "spd#955", "slow or dead steps: SLURM_CPU_BIND inherited through sbatch", (NO_OPTION, SHELL)),
    Bug(11, "snakemake#2230", "memory variables that exclude each other, inherited by a nested submission",
        (NO_OPTION, SHELL, f"{STATE}::test_the_user_s_formats_filters_and_language_are_not_heard")),
    Bug(12, "webknossos-libs#1483", "cpus-per-task set by two variables", (NO_OPTION, ALL_SHAPE)),
    Bug(13, "srt-slurm#125", "SLURM_TRES_PER_TASK, NTASKS, CPU_BIND in a nested srun", (NO_OPTION,)),
    Bug(14, "smith#688, ompi#8378", "step creation still disabled: steps wait for each other",
        (ALL_SHAPE, "tests/cluster/test_cluster_itself.py::test_a_heterogeneous_job_of_three_components_runs_side_by_side_as_its_user")),
    Bug(15, "geos-chem#822, executorlib#761", "cannot find the MPI plugin", (ALL_SHAPE,)),
    Bug(16, "NeMo-RL#261, ray#10154", "ports collide on shared nodes", (SURROUNDINGS,)),
    Bug(17, "ray#58875", "the host's name resolves to an address that is not its own",
        (f"{ADDRESS}::test_on_this_machine_every_own_address_leads_to_itself_and_can_be_listened_on",
         f"{ADDRESS}::test_the_address_follows_from_the_facts")),
    Bug(18, "slime#1714", "calls inside the cluster go to http_proxy",
        ("tests/test_wire.py::test_the_environment_s_proxies_are_ignored", SURROUNDINGS)),
    Bug(19, "argo-shim#2, NemoClaw#3190", "a local endpoint goes to the site's proxy",
        ("tests/test_wire.py::test_the_environment_s_proxies_are_ignored", SURROUNDINGS)),
    Bug(20, "DeepSpeed#826, #6497, #2837", "MPI discovery when RANK is missing",
        ("tests/test_learner_ranks.py::test_a_rank_is_what_its_slurm_step_or_its_launcher_says",)),
    Bug(21, "DeepSpeed#5136", "takes the first network card",
        (f"{ADDRESS}::test_an_interface_without_a_usable_address_is_refused_with_those_there_are",
         "tests/test_learner_ranks.py::test_the_interface_of_an_address_is_found_and_a_foreign_address_is_refused")),
    Bug(22, "UQ hpc-docs#2, pytorch#73656, accelerate#1489", "short names that do not resolve, or to the slow network",
        (f"{ADDRESS}::test_the_address_follows_from_the_facts",)),
    Bug(23, "dask-jobqueue#382, #238, #681", "interface differs on login nodes; a probe of the default route",
        (f"{ADDRESS}::test_asking_the_way_sends_nothing", f"{ADDRESS}::test_a_launcher_without_a_route_asks_for_the_interface")),
    Bug(24, "DeepSpeed#5878", "`64(x2)` breaks the shell",
        (f"{STEP}::test_numbers_of_nodes_as_slurm_shortens_them",)),
    Bug(25, "nextflow#218, helm#1636, submitit#1602", "spaces and signs in paths",
        (f"{SCRIPT}::test_a_path_never_reaches_a_directive", f"{ON_SLURM}::test_a_run_directory_may_have_any_name", SURROUNDINGS)),
    Bug(26, "esm_tools#933", "the word hetjob in a path",
        (f"{SCRIPT}::test_a_run_named_like_a_separator_is_not_one", SURROUNDINGS)),
    Bug(27, "SmartSim#104, #268, psij-python#423, #445, toil#1391", "values cut at a comma of --export",
        (f"{BUGS}::test_no_value_travels_in_an_export_option",)),
    Bug(28, "submitit#1659, toil#2381, cloudai#973", "a busy controller's silence kills the run or submits twice",
        (f"{SUBMIT}::test_a_lost_answer_is_looked_up_before_anything_is_sent_again",
         f"{SUBMIT}::test_a_submission_that_never_arrived_is_sent_again",
         f"{STATE}::test_a_silent_controller_leaves_the_state_unknown_and_says_so")),
    Bug(29, "skypilot#10458", "a live job that is briefly missing",
        (f"{STATE}::test_a_job_is_missing_only_when_it_was_missed_twice",)),
    Bug(30, "snakemake-executor-plugin-slurm#117, #341, ondemand#3253", "invalid account or account/partition combination",
        (f"{PREFLIGHT}::test_an_account_and_a_qos_that_the_user_does_not_have",
         f"{PREFLIGHT}::test_a_partition_that_admits_only_other_accounts",
         "tests/cluster/test_refused.py::test_what_the_cluster_cannot_give_is_named")),
    Bug(31, "NeMo-Framework-Launcher#72, exemplar-performance#5, radical.saga#679", "the site's way of asking for GPUs",
        (f"{GRAMMAR}::test_gpus_are_asked_for_the_way_the_site_wants", f"{PREFLIGHT}::test_the_type_of_a_gpu_is_case_sensitive")),
    Bug(32, "f3dasm#352, torchforge#590, torchx#359", "memory that must, or must not, be asked for",
        (f"{SCRIPT}::test_every_component_says_what_it_needs_and_the_first_what_is_said_once",
         f"{PREFLIGHT}::test_more_gpus_cores_or_memory_than_any_node_has")),
    Bug(33, "slurm2sql#5, aiida-core#3415, C-Star#662, qbatch#209", "UNLIMITED, Partition_Limit; a bare number of minutes",
        (f"{GRAMMAR}::test_every_spelling_of_a_time_limit_is_read", f"{GRAMMAR}::test_what_is_no_time_is_none_and_not_zero",
         f"{STATE}::test_no_time_is_none_and_never_zero")),
    Bug(34, "sisyphus#201, nextflow#226, codalab#2391", "a requeued job's log overwritten, the job run twice",
        (f"{ON_SLURM}::test_a_second_run_of_the_script_writes_behind_the_first", THROUGH_EVERY_FAULT)),
    Bug(35, "fairchem#803, TensorRT-LLM#17654", "a node's death starts the training anew", (THROUGH_EVERY_FAULT,)),
    Bug(36, "prime-rl#2574, #1907, #2331", "one crash holds all nodes; orphans keep ports and /dev/shm",
        (THROUGH_EVERY_FAULT, "tests/test_slurm_local.py::test_nothing_is_left_of_roles_that_ignore_the_end_or_leave_orphans")),
    Bug(37, "snakemake#39, #775, #2739, siliconcompiler#882", "a file that is there is not seen over NFS",
        ("tests/test_fsio.py::test_a_stale_handle_is_opened_again",
         "tests/test_report_jobs.py::test_what_two_nodes_measured_is_judged")),
    Bug(38, "filelock#67, #669, boinc#1563, hdf5#3311", "flock hangs or fails on a shared filesystem",
        (f"{BUGS}::test_nobody_locks_a_file_that_nodes_share",)),
    Bug(39, "Automodel#3390", "a full quota leaves a stale pointer to the latest",
        ("tests/test_spool_refused.py::test_a_full_disk_and_a_read_only_one_are_one_clear_error_with_nothing_half_written",
         f"{PREFLIGHT}::test_a_quota_that_is_used_up")),
    Bug(40, "qbatch#139, flux-core#3326, seml#94", "the login node's TMPDIR on the compute nodes", (SHELL,)),
    Bug(41, "QSMxT#38, OpenBLAS#4762, pangeo#218, singularity#5334, #4555",
        "low process limits, an ASCII locale, a container cache used by many at once",
        (f"{CLI}::test_help_and_status_work_under_the_process_limit_of_a_login_node",
         f"{CLI}::test_checking_a_recipe_starts_no_thread_a_core",
         f"{CLI}::test_the_language_of_a_terminal_stops_no_command"),
        "images are files or folders of the recipe: nothing is pulled, so there is no cache to share"),
)  # fmt: skip
