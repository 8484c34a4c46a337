"""Errors that `test_repository.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the index on disk is not read",
        "files:Repository.__init__",
        "self._index.load()",
        "{}",
        "test_repository.py::test_a_new_process_reads_only_files_that_changed",
    ),
    Mutation(
        "deleted files stay in the index",
        "Repository.save",
        "self._deleted - changed.keys()",
        "()",
        "test_repository.py::test_a_deleted_file_leaves_the_index",
    ),
    Mutation(
        "a broken index is an error",
        "Index.load",
        "except (sqlite3.Error,",
        "except (ZeroDivisionError,",
        "test_repository.py::test_a_broken_index_is_built_again",
    ),
    Mutation(
        "an index that is being written is deleted",
        "Index.load",
        "except sqlite3.OperationalError:",
        "except ZeroDivisionError:",
        "test_repository.py::test_an_index_that_another_process_writes_is_left_alone",
    ),
    Mutation(
        "a folder that cannot be written is an error",
        "Index.save",
        "except (sqlite3.Error, OSError)",
        "except sqlite3.Error",
        "test_repository.py::test_an_index_that_cannot_be_written_costs_only_time",
    ),
    Mutation(
        "a link is followed out of the repository",
        "Repository._walk",
        "if entry.is_symlink():",
        "if False:",
        "test_repository.py::test_no_secret_is_opened_or_reached_by_a_link",
    ),
    Mutation(
        "a file that became a secret is shown",
        "Repository.text",
        "if secret_text(text):",
        "if False:",
        "test_repository.py::test_a_file_that_became_a_secret_is_not_shown",
    ),
    Mutation(
        "old rules of an ignore file are remembered",
        "Repository._spec",
        "        self._ignored.clear()\n",
        "",
        "test_repository.py::test_a_changed_ignore_file_counts_at_once",
    ),
    Mutation(
        "the first rule of ignore files counts",
        "Rules.ignore",
        "in reversed(self.specs)",
        "in self.specs",
        "test_repository.py::test_ignore_files_apply_below_their_folder_and_the_last_rule_counts",
    ),
    Mutation(
        "tokens that stand beside short words only are searched",
        "secret_files:secret_text",
        "if len(word) >= SHORTEST",
        "if len(word) > SHORTEST",
        "test_secrets.py::test_each_beginning_needs_as_many_characters_as_its_issuer_gives_it",
    ),
    Mutation(
        "KeePass's older databases are read",
        "NAMES",
        " *.kdb ",
        " ",
        "test_repository.py::test_each_pattern_of_a_name_finds_a_secret_that_no_other_does",
    ),
    Mutation(
        "backups of Terraform's state are read",
        "NAMES",
        " *.tfstate* ",
        " *.tfstate ",
        "test_repository.py::test_each_pattern_of_a_name_finds_a_secret_that_no_other_does",
    ),
    Mutation(
        "Kubernetes' settings are read",
        "secret_files:FOLDERS",
        '".kube", ',
        "",
        "test_repository.py::test_each_pattern_of_a_name_finds_a_secret_that_no_other_does",
    ),
)
