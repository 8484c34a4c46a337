"""Errors that `test_symbols.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a module within a package is a module of its own", "Modules.find", 'f"{folder}__init__.py" not in self.paths', "True", "test_symbols.py::test_an_import_finds_the_file_that_python_would"),
    Mutation("a Python file is repaired by other lines than its parser's", "python_outline:repaired", "LINE_END.split(text)", 'text.split("\\n")', "test_symbols.py::test_a_file_with_any_line_ends_and_an_unfinished_block_has_an_outline"),
    Mutation("an imported module loses its other name", "imports", "line, alias.asname or alias.name)", "line, alias.name)", "test_symbols.py::test_an_imported_module_has_the_name_that_the_file_gives_it"),
    Mutation("an import finds every file of its name", "other_imports:_nearest", "len(file), file))[:1]", "len(file), file))[:2]", "test_symbols.py::test_imports_of_other_languages_find_their_files"),
    Mutation("Java knows nothing of its own package", "_java", '    yield "of the same package", [], [file for file in sorted(paths) if dirname(file) == dirname(path)]\n', "", "test_symbols.py::test_imports_of_other_languages_find_their_files"),
    Mutation("a blank line ends a definition", "by_words", "if line.strip() and _indent(line)", "if _indent(line)", "test_symbols.py::test_a_definition_that_is_found_by_indentation_may_have_blank_lines"),
    Mutation("a crate begins in the folder of each file", "_rust", "if \"src/\" in path else dirname(path) + \"/\"", "if False else dirname(path) + \"/\"", "test_symbols.py::test_imports_of_other_languages_find_their_files"),
    Mutation("blanks behind an unfinished definition lose it", "python_outline:_repair", "(.*:)\\s*", "(.*:)", "test_symbols.py::test_an_unfinished_definition_is_found_whatever_stands_behind_its_colon"),
    Mutation("a comment behind an unfinished definition loses it", "python_outline:_repair", "(?:#.*)?", "", "test_symbols.py::test_an_unfinished_definition_is_found_whatever_stands_behind_its_colon"),
    Mutation("a warning of the parser is passed on", "python_outline:repaired", '                warnings.simplefilter("ignore")\n', "", "test_symbols.py::test_a_warning_of_the_parser_is_not_passed_on"),
    Mutation("text that is nested too deeply is parsed again and again", "python_outline:repaired", "nested too deeply\n            return None\n", "nested too deeply\n            pass\n", "test_symbols.py::test_text_that_the_parser_gives_up_on_is_parsed_once"),
)
